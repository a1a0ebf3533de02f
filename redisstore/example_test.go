package redisstore_test

import (
	"context"
	"errors"
	"net/http"

	"github.com/redis/go-redis/v9"

	"github.com/oncemore-go/oncemore/redisstore"
	"github.com/oncemore-go/oncemore/server"
)

// A service that starts only over a Redis that keeps what it has acknowledged.
func Example() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	store, err := redisstore.New(client, redisstore.Config{Prefix: "payments"})
	if err != nil {
		panic(err)
	}
	once, err := server.New(store, server.Config{Scope: server.SharedScope})
	if err != nil {
		panic(err)
	}
	charge := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })
	if err := store.Check(context.Background()); err != nil {
		panic(err)
	}
	http.Handle("POST /charges", once.Wrap(charge))
}

// What a program can live with is its own decision: here a crash of the machine
// may cost the last two seconds, as on many managed services, but nothing is evicted.
func ExampleStore_Check() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:6379", ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	store, err := redisstore.New(client, redisstore.Config{})
	if err != nil {
		panic(err)
	}
	err = store.Check(context.Background())
	if errors.Is(err, redisstore.ErrEvicts) || err != nil && !errors.Is(err, redisstore.ErrForgets) {
		panic(err)
	}
}
