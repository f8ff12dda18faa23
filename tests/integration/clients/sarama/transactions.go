// transactions BOOTSTRAP INPUT OUTPUT COUNT: sarama consumes INPUT in a group and produces OUTPUT in transactions with the
// offsets, some of which it aborts; then it reads OUTPUT's committed records, and a second producer fences a first one.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

const (
	limit   = 100 * time.Second
	batch   = 20 // records of a transaction at most
	quiet   = 200 * time.Millisecond
	aborted = 3 // every third transaction
)

func main() {
	bootstrap, input, output := strings.Split(os.Args[1], ","), os.Args[2], os.Args[3]
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	copy := &copying{output: output, group: "copy-" + output, count: count}
	copy.producer, err = producer(bootstrap, "copy-"+output)
	check(err)
	check(consume(ctx, bootstrap, copy.group, input, func(stop func()) sarama.ConsumerGroupHandler { copy.stop = stop; return copy }))
	check(copy.failed)
	fmt.Println("COPIED", copy.done)
	check(copy.producer.Close())
	read := &reading{seen: make(map[string]bool), count: count}
	check(consume(ctx, bootstrap, "read-"+output, output, func(stop func()) sarama.ConsumerGroupHandler { read.stop = stop; return read }))
	check(read.failed)
	fmt.Println("READ", len(read.seen))
	check(fenced(bootstrap, output))
}

func check(err error) {
	if err != nil {
		fmt.Println("FAIL", err)
		os.Exit(1)
	}
}

func settings() *sarama.Config {
	made := sarama.NewConfig()
	made.Version = sarama.V3_6_0_0
	made.Consumer.IsolationLevel = sarama.ReadCommitted
	made.Consumer.Offsets.Initial = sarama.OffsetOldest
	made.Consumer.Offsets.AutoCommit.Enable = false
	return made
}

func producer(bootstrap []string, id string) (sarama.SyncProducer, error) {
	made := settings()
	made.Producer.Idempotent = true
	made.Producer.RequiredAcks = sarama.WaitForAll
	made.Producer.Transaction.ID = id
	made.Producer.Return.Successes = true
	made.Net.MaxOpenRequests = 1
	return sarama.NewSyncProducer(bootstrap, made)
}

// consume runs a member of a group until `stop` is called.
func consume(ctx context.Context, bootstrap []string, group, topic string, handler func(stop func()) sarama.ConsumerGroupHandler) error {
	member, err := sarama.NewConsumerGroup(bootstrap, group, settings())
	if err != nil {
		return err
	}
	defer member.Close()
	working, stop := context.WithCancel(ctx)
	defer stop()
	made := handler(stop)
	for working.Err() == nil {
		if err := member.Consume(working, []string{topic}, made); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	}
	return ctx.Err()
}

type copying struct {
	lock                sync.Mutex // one transaction at a time, of all partitions
	producer            sarama.SyncProducer
	output, group       string
	count, done, number int
	stop                func()
	failed              error
}

func (c *copying) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (c *copying) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (c *copying) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	var held []*sarama.ConsumerMessage
	for {
		select {
		case message, isOpen := <-claim.Messages():
			if !isOpen {
				return nil
			}
			held = append(held, message)
			if len(held) < batch {
				continue
			}
		case <-time.After(quiet):
		case <-session.Context().Done():
			return nil
		}
		if len(held) == 0 {
			continue
		}
		if err := c.transaction(held); err != nil {
			c.failed = err
			c.stop()
			return err
		}
		held = nil
	}
}

// transaction copies the records once; before that, some are written and aborted.
func (c *copying) transaction(held []*sarama.ConsumerMessage) error {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.number++
	if c.number%aborted == 0 {
		if err := c.write(held); err != nil {
			return err
		}
		if err := c.producer.AbortTxn(); err != nil {
			return err
		}
	}
	if err := c.write(held); err != nil {
		return err
	}
	if err := c.producer.CommitTxn(); err != nil {
		return err
	}
	c.done += len(held)
	if c.done >= c.count {
		c.stop()
	}
	return nil
}

func (c *copying) write(held []*sarama.ConsumerMessage) error {
	if err := c.producer.BeginTxn(); err != nil {
		return err
	}
	for _, message := range held {
		value := sarama.StringEncoder("done-" + string(message.Value))
		if _, _, err := c.producer.SendMessage(&sarama.ProducerMessage{Topic: c.output, Value: value}); err != nil {
			return err
		}
	}
	return c.producer.AddMessageToTxn(held[len(held)-1], c.group, nil)
}

type reading struct {
	lock   sync.Mutex
	seen   map[string]bool
	count  int
	stop   func()
	failed error
}

func (r *reading) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (r *reading) Cleanup(sarama.ConsumerGroupSession) error { return nil }

func (r *reading) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	for message := range claim.Messages() {
		r.take(string(message.Value))
		session.MarkMessage(message, "")
	}
	session.Commit()
	return nil
}

func (r *reading) take(value string) {
	r.lock.Lock()
	defer r.lock.Unlock()
	if r.seen[value] {
		r.failed = fmt.Errorf("%s was read twice", value)
	}
	r.seen[value] = true
	if len(r.seen) >= r.count || r.failed != nil {
		r.stop()
	}
}

func fenced(bootstrap []string, output string) error {
	first, err := begun(bootstrap, output, "lost")
	if err != nil {
		return err
	}
	second, err := begun(bootstrap, output, "kept")
	if err != nil {
		return err
	}
	if err := first.CommitTxn(); err == nil {
		return errors.New("the first producer was not fenced")
	} else {
		fmt.Println("FENCED", err)
	}
	if err := second.CommitTxn(); err != nil {
		return err
	}
	return second.Close()
}

func begun(bootstrap []string, output, value string) (sarama.SyncProducer, error) {
	made, err := producer(bootstrap, "fence-"+output)
	if err != nil {
		return nil, err
	}
	if err := made.BeginTxn(); err != nil {
		return nil, err
	}
	_, _, err = made.SendMessage(&sarama.ProducerMessage{Topic: output, Value: sarama.StringEncoder(value)})
	return made, err
}
