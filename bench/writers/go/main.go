// A writer on franz-go with default settings: see bench/leader_kill.py.
package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const every = 20 * time.Millisecond

func main() {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.DefaultProduceTopic(os.Args[2]),
	)
	if err != nil {
		panic(err)
	}
	var printing sync.Mutex
	for {
		client.TryProduce(context.Background(), &kgo.Record{Value: []byte("x")}, func(_ *kgo.Record, err error) {
			printing.Lock()
			defer printing.Unlock()
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
				return
			}
			fmt.Printf("%.6f\n", float64(time.Now().UnixNano())/1e9)
		})
		time.Sleep(every)
	}
}
