// Package clients holds franz-go against the broker that BOOTSTRAP names.
package clients

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const patience = 30 * time.Second

func client(t *testing.T, options ...kgo.Opt) *kgo.Client {
	t.Helper()
	seed := kgo.SeedBrokers(os.Getenv("BOOTSTRAP"))
	made, err := kgo.NewClient(append([]kgo.Opt{seed}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(made.Close)
	return made
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func topic(t *testing.T, partitions int32) string {
	t.Helper()
	name := fmt.Sprintf("go-%s-%d", safe(t.Name()), time.Now().UnixNano())
	made, err := kadm.NewClient(client(t)).CreateTopic(within(t), partitions, 1, nil, name)
	if err != nil {
		t.Fatal(err)
	}
	if made.NumPartitions != partitions || made.ID == (kadm.TopicID{}) {
		t.Fatalf("created with %d partitions and id %v", made.NumPartitions, made.ID)
	}
	return name
}

func safe(name string) string {
	return string(bytes.Map(func(r rune) rune {
		if r == '/' || r == '#' {
			return '-'
		}
		return r
	}, []byte(name)))
}

func TestMessagesKeepEveryPart(t *testing.T) {
	codecs := map[string]kgo.CompressionCodec{
		"none":   kgo.NoCompression(),
		"gzip":   kgo.GzipCompression(),
		"snappy": kgo.SnappyCompression(),
		"lz4":    kgo.Lz4Compression(),
		"zstd":   kgo.ZstdCompression(),
	}
	at := time.UnixMilli(time.Now().UnixMilli() - 60_000)
	for name, codec := range codecs {
		t.Run(name, func(t *testing.T) {
			into := topic(t, 1)
			sent := []*kgo.Record{
				{Key: []byte("key"), Value: []byte("value"), Headers: []kgo.RecordHeader{{Key: "a", Value: []byte("1")}, {Key: "a", Value: nil}}},
				{Key: nil, Value: []byte("no key")},
				{Key: []byte("deleted"), Value: nil},
				{Key: []byte("large"), Value: bytes.Repeat([]byte("x"), 500_000)},
			}
			for i, record := range sent {
				record.Topic = into
				record.Timestamp = at.Add(time.Duration(i) * time.Millisecond)
			}
			producer := client(t, kgo.ProducerBatchCompression(codec))
			if err := producer.ProduceSync(within(t), sent...).FirstErr(); err != nil {
				t.Fatal(err)
			}
			consumer := client(t, kgo.ConsumeTopics(into), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
			var got []*kgo.Record
			for ctx := within(t); len(got) < len(sent); {
				fetches := consumer.PollFetches(ctx)
				if err := fetches.Err(); err != nil {
					t.Fatal(err)
				}
				got = append(got, fetches.Records()...)
			}
			for i := range sent {
				if got[i].Offset != int64(i) || !got[i].Timestamp.Equal(sent[i].Timestamp) {
					t.Errorf("record %d is at %d, %v", i, got[i].Offset, got[i].Timestamp)
				}
				if !bytes.Equal(got[i].Key, sent[i].Key) || !bytes.Equal(got[i].Value, sent[i].Value) ||
					(got[i].Key == nil) != (sent[i].Key == nil) || (got[i].Value == nil) != (sent[i].Value == nil) {
					t.Errorf("record %d has another key or value", i)
				}
				if fmt.Sprint(got[i].Headers) != fmt.Sprint(sent[i].Headers) {
					t.Errorf("record %d has headers %v", i, got[i].Headers)
				}
			}
		})
	}
}

type member struct {
	mutex    sync.Mutex
	assigned map[int32]bool
	read     map[string]int
	client   *kgo.Client
	done     chan struct{}
}

func (m *member) partitions() int {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	return len(m.assigned)
}

func (m *member) change(topics map[string][]int32, owned bool) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, partitions := range topics {
		for _, partition := range partitions {
			if owned {
				m.assigned[partition] = true
			} else {
				delete(m.assigned, partition)
			}
		}
	}
}

func join(t *testing.T, group, from string, balancer kgo.GroupBalancer) *member {
	t.Helper()
	m := &member{assigned: map[int32]bool{}, read: map[string]int{}, done: make(chan struct{})}
	lost := func(_ context.Context, _ *kgo.Client, topics map[string][]int32) { m.change(topics, false) }
	m.client = client(t,
		kgo.ConsumerGroup(group), kgo.ConsumeTopics(from), kgo.Balancers(balancer),
		kgo.HeartbeatInterval(200*time.Millisecond),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, topics map[string][]int32) { m.change(topics, true) }),
		kgo.OnPartitionsRevoked(lost), kgo.OnPartitionsLost(lost),
	)
	go func() {
		defer close(m.done)
		for {
			fetches := m.client.PollFetches(context.Background())
			if fetches.IsClientClosed() {
				return
			}
			m.mutex.Lock()
			fetches.EachRecord(func(r *kgo.Record) { m.read[fmt.Sprintf("%d/%d", r.Partition, r.Offset)]++ })
			m.mutex.Unlock()
		}
	}()
	return m
}

func (m *member) leave() {
	_ = m.client.CommitUncommittedOffsets(context.Background())
	m.client.Close()
	<-m.done
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !condition(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not %s in time", what)
		}
	}
}

func TestMembersComeAndGo(t *testing.T) {
	const partitions, count = 6, 120
	balancers := map[string]kgo.GroupBalancer{
		"range":              kgo.RangeBalancer(),
		"roundrobin":         kgo.RoundRobinBalancer(),
		"sticky":             kgo.StickyBalancer(),
		"cooperative-sticky": kgo.CooperativeStickyBalancer(),
	}
	for name, balancer := range balancers {
		t.Run(name, func(t *testing.T) {
			from := topic(t, partitions)
			group := "group-of-" + from
			producer := client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
			write := func() {
				records := make([]*kgo.Record, count)
				for i := range records {
					records[i] = &kgo.Record{Topic: from, Partition: int32(i % partitions), Value: []byte(fmt.Sprint(i))}
				}
				if err := producer.ProduceSync(within(t), records...).FirstErr(); err != nil {
					t.Fatal(err)
				}
			}
			distinct := func(members ...*member) int {
				all := map[string]bool{}
				for _, m := range members {
					m.mutex.Lock()
					for at := range m.read {
						all[at] = true
					}
					m.mutex.Unlock()
				}
				return len(all)
			}
			first := join(t, group, from, balancer)
			eventually(t, "one member with all", func() bool { return first.partitions() == partitions })
			second, third := join(t, group, from, balancer), join(t, group, from, balancer)
			eventually(t, "three with two each", func() bool {
				return first.partitions() == 2 && second.partitions() == 2 && third.partitions() == 2
			})
			write()
			eventually(t, "everything read", func() bool { return distinct(first, second, third) == count })
			first.leave()
			eventually(t, "two with three each", func() bool { return second.partitions() == 3 && third.partitions() == 3 })
			write()
			eventually(t, "everything read", func() bool { return distinct(first, second, third) == 2*count })
			second.leave()
			third.leave()
			offsets, err := kadm.NewClient(client(t)).FetchOffsets(within(t), group)
			if err != nil {
				t.Fatal(err)
			}
			sum := int64(0)
			offsets.Each(func(o kadm.OffsetResponse) { sum += o.At })
			if sum != 2*count {
				t.Errorf("%d committed, %d were read", sum, 2*count)
			}
		})
	}
}

func TestAdministration(t *testing.T) {
	name := topic(t, 2)
	ctx := within(t)
	admin := kadm.NewClient(client(t))
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, name); !errors.Is(err, kerr.TopicAlreadyExists) {
		t.Errorf("creating it again: %v", err)
	}
	grown, err := admin.UpdatePartitions(ctx, 4, name)
	if err != nil || grown[name].Err != nil {
		t.Fatal(err, grown[name].Err)
	}
	value := "80000"
	altered, err := admin.AlterTopicConfigs(ctx, []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &value}}, name)
	if err != nil || altered[0].Err != nil {
		t.Fatal(err, altered)
	}
	described, err := admin.DescribeTopicConfigs(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	for _, config := range described[0].Configs {
		if config.Key == "retention.ms" && config.MaybeValue() != value {
			t.Errorf("retention.ms=%s", config.MaybeValue())
		}
	}
	producer := client(t, kgo.RecordPartitioner(kgo.ManualPartitioner()))
	for i := range 10 {
		record := &kgo.Record{Topic: name, Value: []byte{byte(i)}, Timestamp: time.UnixMilli(int64(1_000_000_000_000 + i*1000))}
		if err := producer.ProduceSync(ctx, record).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	after, err := admin.ListOffsetsAfterMilli(ctx, 1_000_000_006_500, name)
	if err != nil || after[name][0].Offset != 7 {
		t.Errorf("by time: %v %v", after[name][0], err)
	}
	greatest, err := admin.ListMaxTimestampOffsets(ctx, name)
	if err != nil || greatest[name][0].Offset != 9 {
		t.Errorf("greatest time: %v %v", greatest[name][0], err)
	}
	deleted, err := admin.DeleteRecords(ctx, kadm.Offsets{name: {0: {Topic: name, Partition: 0, At: 4}}})
	if err != nil || deleted[name][0].LowWatermark != 4 {
		t.Errorf("delete records: %v %v", deleted, err)
	}
	directories, err := admin.DescribeAllLogDirs(ctx, kadm.TopicsSet{name: {0: {}}})
	if err != nil || len(directories) != 1 {
		t.Errorf("directories: %v %v", directories, err)
	}
	rules, err := admin.DescribeACLs(ctx, kadm.NewACLs().AnyResource().Allow().AllowHosts().Deny().DenyHosts().Operations())
	if err != nil || len(rules) == 0 || !errors.Is(rules[0].Err, kerr.SecurityDisabled) {
		t.Errorf("access rules: %v %v", rules, err)
	}
	gone, err := admin.DeleteTopic(ctx, name)
	if err != nil || gone.Err != nil {
		t.Errorf("delete: %v %v", gone, err)
	}
}
