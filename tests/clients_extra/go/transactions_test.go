package clients

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

func transactional(t *testing.T, name string, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	return client(t, append([]kgo.Opt{kgo.TransactionalID(name), kgo.RecordPartitioner(kgo.ManualPartitioner())}, options...)...)
}

func begin(t *testing.T, producer *kgo.Client, into string, values ...string) {
	t.Helper()
	if err := producer.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for _, value := range values {
		for partition := int32(0); partition < 2; partition++ {
			record := &kgo.Record{Topic: into, Partition: partition, Value: []byte(value)}
			if err := producer.ProduceSync(within(t), record).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func end(t *testing.T, producer *kgo.Client, how kgo.TransactionEndTry) {
	t.Helper()
	if err := producer.EndTransaction(within(t), how); err != nil {
		t.Fatal(err)
	}
}

// values reads partition 0 of a topic up to its end; control records show the progress.
func values(t *testing.T, from string, level kgo.IsolationLevel) []string {
	t.Helper()
	admin := kadm.NewClient(client(t))
	list := admin.ListEndOffsets
	if level == kgo.ReadCommitted() {
		list = admin.ListCommittedOffsets
	}
	ends, err := list(within(t), from)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(from, 0)
	start := map[string]map[int32]kgo.Offset{from: {0: kgo.NewOffset().AtStart()}}
	consumer := client(t, kgo.ConsumePartitions(start), kgo.FetchIsolationLevel(level), kgo.KeepControlRecords())
	found := []string{}
	for at := int64(0); at < end.Offset; {
		fetches := consumer.PollFetches(within(t))
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(one *kgo.Record) {
			at = one.Offset + 1
			if !one.Attrs.IsControl() {
				found = append(found, string(one.Value))
			}
		})
	}
	return found
}

func expect(t *testing.T, from string, level kgo.IsolationLevel, wanted ...string) {
	t.Helper()
	if found := values(t, from, level); !slices.Equal(found, wanted) {
		t.Fatalf("found %q, wanted %q", found, wanted)
	}
}

func TestTransactionsAreReadWholeOrNotAtAll(t *testing.T) {
	into := topic(t, 2)
	producer := transactional(t, into)
	begin(t, producer, into, "a", "b")
	end(t, producer, kgo.TryCommit)
	begin(t, producer, into, "aborted")
	end(t, producer, kgo.TryAbort)
	begin(t, producer, into, "c")
	end(t, producer, kgo.TryCommit)
	begin(t, producer, into)
	end(t, producer, kgo.TryCommit)
	begin(t, producer, into, "open")
	expect(t, into, kgo.ReadCommitted(), "a", "b", "c")
	expect(t, into, kgo.ReadUncommitted(), "a", "b", "aborted", "c", "open")
	end(t, producer, kgo.TryAbort)
	expect(t, into, kgo.ReadCommitted(), "a", "b", "c")
}

func TestTransactionsOfFormerInstancesAreFenced(t *testing.T) {
	into := topic(t, 2)
	first := transactional(t, into)
	begin(t, first, into, "zombie")
	second := transactional(t, into)
	begin(t, second, into, "second")
	end(t, second, kgo.TryCommit)
	record := &kgo.Record{Topic: into, Value: []byte("late zombie")}
	err := first.ProduceSync(within(t), record).FirstErr()
	if err == nil {
		err = first.EndTransaction(within(t), kgo.TryCommit)
	}
	if !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.ProducerFenced) {
		t.Fatalf("the first instance got %v", err)
	}
	expect(t, into, kgo.ReadCommitted(), "second")
}

func TestTransactionsTimeOut(t *testing.T) {
	into := topic(t, 2)
	producer := transactional(t, into, kgo.TransactionTimeout(time.Second))
	begin(t, producer, into, "abandoned")
	admin := kadm.NewClient(client(t))
	eventually(t, "aborted", func() bool {
		found, err := admin.DescribeTransactions(within(t), into)
		return err == nil && found[into].State == "CompleteAbort"
	})
	expect(t, into, kgo.ReadCommitted())
	if err := producer.EndTransaction(within(t), kgo.TryCommit); err == nil {
		t.Fatal("the late commit succeeds")
	}
}

func TestTransactionsContainThePositionsOfTheirInput(t *testing.T) {
	const count = 200
	from, into := topic(t, 2), topic(t, 2)
	input := client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for number := 0; number < count; number++ {
		record := &kgo.Record{Topic: from, Partition: int32(number % 2), Value: []byte(fmt.Sprintf("%03d", number))}
		if err := input.ProduceSync(within(t), record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	group := "copiers-of-" + from
	copied := 0
	// Each session handles a part of the input. Every third transaction is aborted, and its input is read again.
	for session := 0; session < 3; session++ {
		one, err := kgo.NewGroupTransactSession(
			kgo.SeedBrokers(os.Getenv("BOOTSTRAP")),
			kgo.TransactionalID(into), kgo.ConsumerGroup(group), kgo.ConsumeTopics(from),
			kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.RequireStableFetchOffsets(),
			kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
		if err != nil {
			t.Fatal(err)
		}
		for round := 0; copied < count*(session+1)/3; round++ {
			fetches := one.PollRecords(within(t), 10)
			if err := fetches.Err(); err != nil {
				t.Fatal(err)
			}
			if err := one.Begin(); err != nil {
				t.Fatal(err)
			}
			read := 0
			fetches.EachRecord(func(record *kgo.Record) {
				read++
				one.Produce(context.Background(), &kgo.Record{Topic: into, Partition: 0, Value: record.Value}, nil)
			})
			committed, err := one.End(within(t), kgo.TransactionEndTry(round%3 != 2))
			if err != nil {
				t.Fatal(err)
			}
			if committed {
				copied += read
			}
		}
		one.Close()
	}
	found := values(t, into, kgo.ReadCommitted())
	slices.Sort(found)
	if len(found) != count {
		t.Fatalf("%d of %d messages were copied", len(found), count)
	}
	for number, value := range found {
		if value != fmt.Sprintf("%03d", number) {
			t.Fatalf("message %d is %q", number, value)
		}
	}
	offsets, err := kadm.NewClient(client(t)).FetchOffsets(within(t), group)
	if err != nil {
		t.Fatal(err)
	}
	for partition := int32(0); partition < 2; partition++ {
		if offset, _ := offsets.Lookup(from, partition); offset.At != count/2 {
			t.Fatalf("partition %d is committed at %d", partition, offset.At)
		}
	}
}
