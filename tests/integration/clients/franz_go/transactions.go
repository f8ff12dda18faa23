// transactions BOOTSTRAP INPUT OUTPUT COUNT: franz-go consumes INPUT in a group and produces OUTPUT in transactions with the
// offsets, some of which it aborts; then it reads OUTPUT's committed records, and a second producer fences a first one.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	limit   = 100 * time.Second
	batch   = 20 // records of a transaction at most
	aborted = 3  // every third transaction
)

func main() {
	bootstrap, input, output := kgo.SeedBrokers(strings.Split(os.Args[1], ",")...), os.Args[2], os.Args[3]
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	check(copied(ctx, bootstrap, input, output, count))
	check(read(ctx, bootstrap, output, count))
	check(fenced(ctx, bootstrap, output))
}

func check(err error) {
	if err != nil {
		fmt.Println("FAIL", err)
		os.Exit(1)
	}
}

func copied(ctx context.Context, bootstrap kgo.Opt, input, output string, count int) error {
	session, err := kgo.NewGroupTransactSession(
		bootstrap, kgo.TransactionalID("copy-"+output), kgo.ConsumerGroup("copy-"+output), kgo.ConsumeTopics(input),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.RequireStableFetchOffsets(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.DefaultProduceTopic(output),
	)
	if err != nil {
		return err
	}
	defer session.Close()
	for done, number := 0, 0; done < count; number++ {
		records := session.PollRecords(ctx, batch).Records()
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d copied: %w", done, count, ctx.Err())
		}
		if len(records) == 0 {
			continue
		}
		if err := session.Begin(); err != nil {
			return err
		}
		for _, record := range records {
			session.Produce(ctx, kgo.StringRecord("done-"+string(record.Value)), nil)
		}
		if err := session.Client().Flush(ctx); err != nil { // or those of an abort are not even sent
			return err
		}
		isCommitted, err := session.End(ctx, kgo.TransactionEndTry(number%aborted != 0))
		if err != nil {
			return err
		}
		if isCommitted {
			done += len(records)
		}
	}
	fmt.Println("COPIED", count)
	return nil
}

func read(ctx context.Context, bootstrap kgo.Opt, output string, count int) error {
	reader, err := kgo.NewClient(
		bootstrap, kgo.ConsumerGroup("read-"+output), kgo.ConsumeTopics(output), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer reader.Close()
	seen := make(map[string]bool)
	for len(seen) < count {
		fetches := reader.PollFetches(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("%d of %d read: %w", len(seen), count, ctx.Err())
		}
		for _, record := range fetches.Records() {
			if seen[string(record.Value)] {
				return fmt.Errorf("%s was read twice", record.Value)
			}
			seen[string(record.Value)] = true
		}
	}
	fmt.Println("READ", len(seen))
	return reader.CommitUncommittedOffsets(ctx)
}

func producer(ctx context.Context, bootstrap kgo.Opt, output, value string) (*kgo.Client, error) {
	made, err := kgo.NewClient(bootstrap, kgo.TransactionalID("fence-"+output), kgo.DefaultProduceTopic(output))
	if err == nil {
		err = made.BeginTransaction()
	}
	if err == nil {
		err = made.ProduceSync(ctx, kgo.StringRecord(value)).FirstErr()
	}
	return made, err
}

func fenced(ctx context.Context, bootstrap kgo.Opt, output string) error {
	first, err := producer(ctx, bootstrap, output, "lost")
	if err != nil {
		return err
	}
	defer first.Close()
	second, err := producer(ctx, bootstrap, output, "kept")
	if err != nil {
		return err
	}
	defer second.Close()
	if err := first.EndTransaction(ctx, kgo.TryCommit); err == nil {
		return fmt.Errorf("the first producer was not fenced")
	} else {
		fmt.Println("FENCED", err)
	}
	return second.EndTransaction(ctx, kgo.TryCommit)
}
