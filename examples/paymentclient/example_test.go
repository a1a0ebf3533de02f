package paymentclient_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/oncemore-go/oncemore/examples/internal/paymentapi"
	"github.com/oncemore-go/oncemore/examples/paymentclient"
)

// A charge, the same charge again, and what an order can't be used for.
func ExampleClient_Charge() {
	ctx := context.Background()
	api, stop := startBank(ctx)
	defer stop()

	client, err := paymentclient.New(paymentclient.Config{
		BaseURL: api,
		Tenant:  "acme",
		Token:   paymentapi.Token("acme"),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ask := paymentclient.ChargeRequest{
		Order: "2026-03-0042", Payer: "Jürgen Müller", Payee: "Café Ünlü", Amount: 1250, Currency: "EUR",
	}
	charge, err := client.Charge(ctx, ask)
	fmt.Println(charge.Amount, charge.Currency, "replayed:", charge.Replayed, err)

	// After a crash, or without an answer: just once more.
	again, err := client.Charge(ctx, ask)
	fmt.Println("the same charge:", again.ID == charge.ID, "replayed:", again.Replayed, err)

	ask.Amount = 999999
	_, err = client.Charge(ctx, ask)
	fmt.Println("another charge for that order:", errors.Is(err, paymentclient.ErrMismatch))

	// Output:
	// 1250 EUR replayed: false <nil>
	// the same charge: true replayed: true <nil>
	// another charge for that order: true
}

// startBank runs the payment API over a ledger of its own.
func startBank(ctx context.Context) (url string, stop func()) {
	dir, err := os.MkdirTemp("", "bank-")
	if err != nil {
		panic(err)
	}
	db, err := paymentapi.OpenLedger(ctx, filepath.Join(dir, "ledger.db"))
	if err != nil {
		panic(err)
	}
	api, err := paymentapi.New(ctx, db, paymentapi.Config{})
	if err != nil {
		panic(err)
	}
	srv := httptest.NewServer(api)
	return srv.URL, func() {
		srv.Close()
		_ = db.Close()
		_ = os.RemoveAll(dir)
	}
}
