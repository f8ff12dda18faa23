// logins FILE: for each case of the file, franz-go connects by TLS with the case's mechanism, writes a record, and reads it in a group.
// The login of a case that is to fail must fail. With "seconds" in the file, it writes 0, 1, 2 and so on for that time instead, and
// tells how many.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/oauth"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"
)

const limit = 30 * time.Second // of one case

type login struct {
	Name, Bootstrap, Mechanism, User, Secret, Certificate string
	IsRefused                                             bool `json:"is_refused"`
}

type settings struct {
	Topic, Authority string
	Seconds          int
	Cases            []login
}

func main() {
	var told settings
	text, err := os.ReadFile(os.Args[1])
	check(err)
	check(json.Unmarshal(text, &told))
	for _, one := range told.Cases {
		if told.Seconds > 0 {
			check(steady(told, one))
			continue
		}
		if one.IsRefused {
			check(refused(told, one))
			fmt.Println("REFUSED", one.Name)
		} else {
			check(worked(told, one))
			fmt.Println("WORKED", one.Name)
		}
	}
}

func check(err error) {
	if err != nil {
		fmt.Println("FAIL", err)
		os.Exit(1)
	}
}

func secured(told settings, one login) (*tls.Config, error) {
	authority, err := os.ReadFile(told.Authority)
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	made := &tls.Config{RootCAs: roots}
	if one.Certificate != "" {
		certificate, err := tls.LoadX509KeyPair(one.Certificate, one.Certificate)
		if err != nil {
			return nil, err
		}
		made.Certificates = []tls.Certificate{certificate}
	}
	return made, nil
}

func mechanism(one login) []kgo.Opt {
	var found sasl.Mechanism
	switch one.Mechanism {
	case "PLAIN":
		found = plain.Auth{User: one.User, Pass: one.Secret}.AsMechanism()
	case "SCRAM-SHA-256":
		found = scram.Auth{User: one.User, Pass: one.Secret}.AsSha256Mechanism()
	case "SCRAM-SHA-512":
		found = scram.Auth{User: one.User, Pass: one.Secret}.AsSha512Mechanism()
	case "OAUTHBEARER":
		found = oauth.Auth{Token: one.Secret}.AsMechanism()
	default:
		return nil
	}
	return []kgo.Opt{kgo.SASL(found)}
}

func client(told settings, one login, more ...kgo.Opt) (*kgo.Client, error) {
	security, err := secured(told, one)
	if err != nil {
		return nil, err
	}
	made := append([]kgo.Opt{kgo.SeedBrokers(strings.Split(one.Bootstrap, ",")...), kgo.DialTLSConfig(security)}, mechanism(one)...)
	return kgo.NewClient(append(made, more...)...)
}

func worked(told settings, one login) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	found, err := client(
		told, one, kgo.ConsumerGroup(told.Topic+"-"+one.Name), kgo.ConsumeTopics(told.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
	)
	if err != nil {
		return err
	}
	defer found.Close()
	record := &kgo.Record{Topic: told.Topic, Value: []byte(one.Name)}
	if err := found.ProduceSync(ctx, record).FirstErr(); err != nil {
		return err
	}
	for {
		fetches := found.PollFetches(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("%s: the record was not read: %v", one.Name, fetches.Errors())
		}
		for _, record := range fetches.Records() {
			if string(record.Value) == one.Name {
				return nil
			}
		}
	}
}

func steady(told settings, one login) error {
	found, err := client(told, one)
	if err != nil {
		return err
	}
	defer found.Close()
	count := 0
	for end := time.Now().Add(time.Duration(told.Seconds) * time.Second); time.Now().Before(end); count++ {
		record := &kgo.Record{Topic: told.Topic, Value: []byte(fmt.Sprint(count))}
		if err := found.ProduceSync(context.Background(), record).FirstErr(); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("COUNT", count)
	return nil
}

func refused(told settings, one login) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	found, err := client(told, one)
	if err != nil {
		return err
	}
	defer found.Close()
	if err = found.Ping(ctx); err == nil {
		return fmt.Errorf("%s: the login was not refused", one.Name)
	}
	fmt.Println(err)
	return nil
}
