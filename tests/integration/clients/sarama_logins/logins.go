// logins FILE: for each case of the file, sarama connects by TLS with the case's mechanism, writes a record, and reads it. The login
// of a case that is to fail must fail. With "seconds" in the file, it writes 0, 1, 2 and so on for that time instead, and tells how
// many.
package main

import (
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/xdg-go/scram"
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
		client, err := connected(told, one)
		if told.Seconds > 0 {
			check(err)
			check(steady(client, told))
			continue
		}
		if one.IsRefused {
			if err == nil {
				check(fmt.Errorf("%s: the login was not refused", one.Name))
			}
			fmt.Println(err)
			fmt.Println("REFUSED", one.Name)
			continue
		}
		check(err)
		check(worked(client, told, one))
		check(client.Close())
		fmt.Println("WORKED", one.Name)
	}
}

func check(err error) {
	if err != nil {
		fmt.Println("FAIL", err)
		os.Exit(1)
	}
}

// conversation is what sarama wants of a library for SCRAM.
type conversation struct {
	hash scram.HashGeneratorFcn
	*scram.ClientConversation
}

func (found *conversation) Begin(user, password, authorization string) error {
	client, err := found.hash.NewClient(user, password, authorization)
	if err == nil {
		found.ClientConversation = client.NewConversation()
	}
	return err
}

// token is a provider of one.
type token string

func (value token) Token() (*sarama.AccessToken, error) { return &sarama.AccessToken{Token: string(value)}, nil }

func connected(told settings, one login) (sarama.Client, error) {
	authority, err := os.ReadFile(told.Authority)
	check(err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	made := sarama.NewConfig()
	made.Version = sarama.V3_6_0_0
	made.Producer.Return.Successes = true
	made.Metadata.Retry.Max = 0
	if told.Seconds > 0 {
		made.Metadata.Retry.Max, made.Producer.Retry.Max = 100, 100
		made.Producer.Idempotent, made.Producer.RequiredAcks, made.Net.MaxOpenRequests = true, sarama.WaitForAll, 1
	}
	made.Net.TLS.Enable = true
	made.Net.TLS.Config = &tls.Config{RootCAs: roots}
	if one.Certificate != "" {
		certificate, err := tls.LoadX509KeyPair(one.Certificate, one.Certificate)
		check(err)
		made.Net.TLS.Config.Certificates = []tls.Certificate{certificate}
		return sarama.NewClient(strings.Split(one.Bootstrap, ","), made)
	}
	made.Net.SASL.Enable = true
	made.Net.SASL.Handshake = true
	made.Net.SASL.Mechanism = sarama.SASLMechanism(one.Mechanism)
	made.Net.SASL.User, made.Net.SASL.Password = one.User, one.Secret
	switch one.Mechanism {
	case sarama.SASLTypeSCRAMSHA256:
		made.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: sha256.New} }
	case sarama.SASLTypeSCRAMSHA512:
		made.Net.SASL.SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &conversation{hash: sha512.New} }
	case sarama.SASLTypeOAuth:
		made.Net.SASL.TokenProvider = token(one.Secret)
	}
	return sarama.NewClient(strings.Split(one.Bootstrap, ","), made)
}

func steady(client sarama.Client, told settings) error {
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return err
	}
	count := 0
	for end := time.Now().Add(time.Duration(told.Seconds) * time.Second); time.Now().Before(end); count++ {
		value := sarama.StringEncoder(fmt.Sprint(count))
		if _, _, err := producer.SendMessage(&sarama.ProducerMessage{Topic: told.Topic, Value: value}); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println("COUNT", count)
	return client.Close()
}

func worked(client sarama.Client, told settings, one login) error {
	producer, err := sarama.NewSyncProducerFromClient(client)
	if err != nil {
		return err
	}
	partition, offset, err := producer.SendMessage(&sarama.ProducerMessage{Topic: told.Topic, Value: sarama.StringEncoder(one.Name)})
	if err != nil {
		return err
	}
	consumer, err := sarama.NewConsumerFromClient(client)
	if err != nil {
		return err
	}
	reading, err := consumer.ConsumePartition(told.Topic, partition, offset)
	if err != nil {
		return err
	}
	defer reading.Close()
	select {
	case found := <-reading.Messages():
		if string(found.Value) != one.Name {
			return fmt.Errorf("%s: read %q at the offset of the record", one.Name, found.Value)
		}
		return nil
	case <-time.After(limit):
		return fmt.Errorf("%s: the record was not read", one.Name)
	}
}
