// round_trip BOOTSTRAP TOPIC COUNT PAUSE_MS: franz-go's idempotent producer (its default) writes COUNT records, PAUSE_MS between
// hundreds of them, while a group of one reads: all of them must be there once, in the order of their offsets.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const limit = 150 * time.Second

func main() {
	bootstrap, topic := strings.Split(os.Args[1], ","), os.Args[2]
	count, err := strconv.Atoi(os.Args[3])
	check(err)
	pauseMs, err := strconv.Atoi(os.Args[4])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- read(ctx, bootstrap, topic, count) }()
	check(write(ctx, bootstrap, topic, count, time.Duration(pauseMs)*time.Millisecond))
	check(<-done)
	fmt.Println("PASS")
}

func check(err error) {
	if err != nil {
		fmt.Println("FAIL", err)
		os.Exit(1)
	}
}

func write(ctx context.Context, bootstrap []string, topic string, count int, pause time.Duration) error {
	producer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.DefaultProduceTopic(topic))
	if err != nil {
		return err
	}
	defer producer.Close()
	var failed atomic.Value
	for number := 0; number < count; number++ {
		record := kgo.KeyStringRecord(fmt.Sprint(number%100), fmt.Sprint(number))
		producer.Produce(ctx, record, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store(err)
			}
		})
		if number == count/4 {
			fmt.Println("QUARTER")
		}
		if number%100 == 0 {
			time.Sleep(pause)
		}
	}
	if err := producer.Flush(ctx); err != nil {
		return err
	}
	err, _ = failed.Load().(error)
	return err
}

func read(ctx context.Context, bootstrap []string, topic string, count int) error {
	start := kgo.ConsumeResetOffset(kgo.NewOffset().AtStart())
	consumer, err := kgo.NewClient(kgo.SeedBrokers(bootstrap...), kgo.ConsumerGroup(topic), kgo.ConsumeTopics(topic), start)
	if err != nil {
		return err
	}
	defer consumer.Close()
	seen := make(map[string]bool)
	next := make(map[int32]int64)
	for len(seen) < count && ctx.Err() == nil {
		fetches := consumer.PollFetches(ctx)
		for _, record := range fetches.Records() {
			if record.Offset > next[record.Partition] {
				return fmt.Errorf("offsets %d to %d of %d were passed over", next[record.Partition], record.Offset, record.Partition)
			}
			next[record.Partition] = record.Offset + 1 // Less than before after a rebalance: read again.
			seen[string(record.Value)] = true
		}
	}
	if len(seen) != count {
		return fmt.Errorf("read %d of %d", len(seen), count)
	}
	return consumer.CommitUncommittedOffsets(ctx)
}
