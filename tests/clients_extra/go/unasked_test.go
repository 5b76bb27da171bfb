// Calls that sarama and kafka-go send without asking which APIs a broker serves.
package clients

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
)

func saramaAdmin(t *testing.T) sarama.ClusterAdmin {
	t.Helper()
	config := sarama.NewConfig()
	config.Version = sarama.V3_0_0_0
	admin, err := sarama.NewClusterAdmin([]string{os.Getenv("BOOTSTRAP")}, config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.Close() })
	return admin
}

func TestSaramaFindsNoQuotas(t *testing.T) {
	admin := saramaAdmin(t)
	user := sarama.QuotaFilterComponent{EntityType: sarama.QuotaEntityUser, MatchType: sarama.QuotaMatchAny}
	for _, filter := range [][]sarama.QuotaFilterComponent{nil, {user}} {
		found, err := admin.DescribeClientQuotas(filter, false)
		if err != nil || len(found) != 0 {
			t.Fatal(found, err)
		}
	}
}

func TestSaramaFindsNoScramCredentials(t *testing.T) {
	admin := saramaAdmin(t)
	all, err := admin.DescribeUserScramCredentials(nil)
	if err != nil || len(all) != 0 {
		t.Fatal(all, err)
	}
	named, err := admin.DescribeUserScramCredentials([]string{"nobody"})
	if err != nil || len(named) != 1 || named[0].ErrorCode != sarama.KError(91) {
		t.Fatal(named, err)
	}
}

func TestSaramaIsToldThatQuotasCannotBeSet(t *testing.T) {
	admin := saramaAdmin(t)
	user := []sarama.QuotaEntityComponent{{EntityType: sarama.QuotaEntityUser, MatchType: sarama.QuotaMatchExact, Name: "u"}}
	err := admin.AlterClientQuotas(user, sarama.ClientQuotasOp{Key: "producer_byte_rate", Value: 1}, false)
	if !errors.Is(err, sarama.ErrUnsupportedVersion) {
		t.Fatal(err)
	}
	_, err = admin.UpsertUserScramCredentials([]sarama.AlterUserScramCredentialsUpsert{
		{Name: "u", Mechanism: sarama.SCRAM_MECHANISM_SHA_256, Iterations: 8192, Salt: []byte("salt"), Password: []byte("word")},
	})
	if !errors.Is(err, sarama.ErrUnsupportedVersion) {
		t.Fatal(err)
	}
	if _, _, err := admin.DescribeCluster(); err != nil {
		t.Fatal("the connection does not go on: ", err)
	}
}

func TestKafkaGoFindsNothing(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client := &kafka.Client{Addr: kafka.TCP(os.Getenv("BOOTSTRAP")), Timeout: 10 * time.Second}
	quotas, err := client.DescribeClientQuotas(ctx, &kafka.DescribeClientQuotasRequest{
		Components: []kafka.DescribeClientQuotasRequestComponent{{EntityType: "user", MatchType: 2}},
	})
	if err != nil || quotas.Error != nil || len(quotas.Entries) != 0 {
		t.Fatal(quotas, err)
	}
	users, err := client.DescribeUserScramCredentials(ctx, &kafka.DescribeUserScramCredentialsRequest{})
	if err != nil || users.Error != nil || len(users.Results) != 0 {
		t.Fatal(users, err)
	}
}

func TestKafkaGoIsToldThatScramCannotBeSet(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	client := &kafka.Client{Addr: kafka.TCP(os.Getenv("BOOTSTRAP")), Timeout: 10 * time.Second}
	answer, err := client.AlterUserScramCredentials(ctx, &kafka.AlterUserScramCredentialsRequest{
		Deletions: []kafka.UserScramCredentialsDeletion{{Name: "u", Mechanism: kafka.ScramMechanismSha512}},
	})
	if err != nil || len(answer.Results) != 1 || !errors.Is(answer.Results[0].Error, kafka.UnsupportedVersion) {
		t.Fatal(answer, err)
	}
}
