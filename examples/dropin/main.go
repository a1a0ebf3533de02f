// Command dropin shows the swap: what an *http.Client did is done by a
// *oncemore.Client, and an order whose answer was lost is placed once. The shop
// that it talks to takes the first order and loses the answer to it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/oncemore-go/oncemore"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "dropin:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) (err error) {
	shop, err := openShop(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shop.close()) }()

	// It was: client := &http.Client{}
	client, err := oncemore.New(oncemore.Config{})
	if err != nil {
		return err
	}
	// From here on nothing is new. Get, Head, PostForm and Do are there as well.
	resp, err := client.Post(shop.url, "application/json", strings.NewReader(`{"item": "chair"}`))
	if err != nil {
		return err
	}
	defer resp.Body.Close()

	fmt.Fprintf(out, "%s after %d attempts; orders in the shop: %d\n",
		resp.Status, len(oncemore.Attempts(resp)), shop.orders.Load())
	return nil
}
