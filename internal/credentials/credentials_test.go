package credentials_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"redrive.dev/redrive/internal/credentials"
)

const secret = "s3cr3t:/@p4ss"

func data(pairs ...string) map[string][]byte {
	values := map[string][]byte{}
	for i := 0; i < len(pairs); i += 2 {
		values[pairs[i]] = []byte(pairs[i+1])
	}
	return values
}

func TestFromSecret_ReadsEachForm(t *testing.T) {
	certificate, key := pair(t)
	cases := []struct {
		name       string
		data       map[string][]byte
		amqp       string // with the vhost of VHostOr(nil)
		management string
	}{
		{
			"the default user of a RabbitmqCluster",
			data("host", "shop.ns.svc", "port", "5672", "username", "u", "password", secret, "type", "rabbitmq", "provider", "rabbitmq",
				"default_user.conf", "default_user = u"),
			"amqp://u:s3cr3t%3A%2F%40p4ss@shop.ns.svc:5672/%2F", "http://shop.ns.svc:15672",
		},
		{
			"the same with TLS",
			data("host", "shop", "port", "5671", "username", "u", "password", "p"), "amqps://u:p@shop:5671/%2F", "https://shop:15671",
		},
		{
			"a uri", data("uri", "amqp://u:p@[::1]/a%2Fb"), "amqp://u:p@[::1]:5672/a%2Fb", "http://[::1]:15672",
		},
		{
			"a uri with user and password beside it", data("uri", "amqps://h", "username", "u", "password", "p"),
			"amqps://u:p@h:5671/%2F", "https://h:15671",
		},
		{
			"a vhost and a management_uri with a path and a user of its own",
			data("host", "h", "username", "u", "password", "p", "vhost", "shop", "management_uri", "https://m:"+`q%2F`+"@x/rabbit/"),
			"amqp://u:p@h:5672/shop", "https://x/rabbit",
		},
		{
			"line ends of files", data("host", "h\n", "port", "1234\r\n", "username", "u\n", "password", "p\n"),
			"amqp://u:p@h:1234/%2F", "http://h:15672",
		},
		{
			"certificates",
			data("host", "h", "username", "u", "password", "p", "ca.crt", certificate, "tls.crt", certificate, "tls.key", key),
			"amqps://u:p@h:5671/%2F", "https://h:15671",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := credentials.FromSecret(c.data)
			if err != nil {
				t.Fatal(err)
			}
			if url := got.AMQPURL(got.VHostOr(nil)); url != c.amqp {
				t.Errorf("want %s, got %s", c.amqp, url)
			}
			end, err := got.Management()
			if err != nil || end.URL != c.management {
				t.Errorf("want %s, got %s, %v", c.management, end.URL, err)
			}
			tls, err := got.TLS()
			if err != nil || (tls != nil) != strings.HasPrefix(c.amqp, "amqps") {
				t.Errorf("TLS: %v, %v", tls != nil, err)
			}
		})
	}
}

func TestFromURLs_KeepsAManagementUserOfItsOwn(t *testing.T) {
	got, err := credentials.FromURLs("amqp://u:p@h/v", "http://m:q@x:1")
	if err != nil {
		t.Fatal(err)
	}
	end, err := got.Management()
	if err != nil || end.Username != "m" || end.Password() != "q" || got.VHostOr(nil) != "v" {
		t.Errorf("got %s, %s, %v", end.Username, end.Password(), err)
	}
	if spec := "w"; got.VHostOr(&spec) != "w" {
		t.Error("the spec's vhost wins")
	}
}

func TestFromSecret_NamesTheKeyAndNoValueInErrors(t *testing.T) {
	certificate, _ := pair(t)
	cases := []struct {
		name string
		data map[string][]byte
		want string
	}{
		{"nothing", nil, "keys host (or uri), username, password: missing"},
		{"no user", data("host", "h", "password", secret), "key username: missing"},
		{"no password", data("host", "h", "username", "u"), "key password: missing"},
		{"a port that is none", data("host", "h", "port", secret, "username", "u", "password", secret), "key port: is not a port number"},
		{"port 0", data("host", "h", "port", "0", "username", "u", "password", secret), "key port: is not a port number"},
		{"a uri that is none", data("uri", "amqp://u:"+secret+"%zz@h"), "key uri: is not a URL"},
		{"a uri of something else", data("uri", "http://u:p@h"), "key uri: is not a URL"},
		{"a host that is a URL", data("host", "amqp://"+secret, "username", "u", "password", "p"), "key host: is neither a DNS name nor an IP address"},
		{"a host that is not UTF-8", data("host", "h\xff", "username", "u", "password", "p"), "key host: is neither a DNS name nor an IP address"},
		{"a host with a zone of any text", data("host", "fe80::1%\xff", "username", "u", "password", "p"), "key host: is neither a DNS name nor an IP address"},
		{"a host of an escaped URL", data("uri", "amqp://u:p@h%c3%28/"), "key uri: is not a URL"},
		{"a management host that is not UTF-8", data("host", "h", "username", "u", "password", "p", "management_uri", "http://h\xff:1"), "key management_uri: its host is neither a DNS name nor an IP address"},
		{"a vhost that is not UTF-8", data("host", "h", "username", "u", "password", "p", "vhost", "v\xff"), "key vhost: is not UTF-8"},
		{"a user that is not UTF-8", data("host", "h", "username", "u\xff", "password", "p"), "key username: is not UTF-8"},
		{
			"a user beyond all bounds", data("host", "h", "username", strings.Repeat(secret, 1000), "password", "p"),
			"key username: has a part of more than 1024 bytes",
		},
		{
			"a password beyond all bounds", data("host", "h", "username", "u", "password", strings.Repeat(secret, 10_000)),
			"key password: has a part of more than 16384 bytes",
		},
		{
			"a password beyond all bounds in a uri", data("uri", "amqp://u:"+strings.Repeat("s3cr3t", 10_000)+"@h"),
			"key password: has a part of more than 16384 bytes",
		},
		{
			"a vhost beyond all bounds", data("host", "h", "username", "u", "password", "p", "vhost", strings.Repeat(secret, 1000)),
			"key vhost: has a part of more than 1024 bytes",
		},
		{
			"a management_uri with a query without a word", data("host", "h", "username", "u", "password", "p", "management_uri", "http://h/admin/shutdown?"),
			"key management_uri: must have no query and no fragment",
		},
		{
			"a path beyond all bounds", data("host", "h", "username", "u", "password", "p", "management_uri", "http://h/"+strings.Repeat("s3cr3t", 1000)),
			"key management_uri: has a part of more than 2048 bytes",
		},
		{
			"a management user beyond all bounds",
			data("host", "h", "username", "u", "password", "p", "management_uri", "http://"+strings.Repeat("s3cr3t", 1000)+":p@h"),
			"key management_uri: has a part of more than 1024 bytes",
		},
		{
			"a management password beyond all bounds",
			data("host", "h", "username", "u", "password", "p", "management_uri", "http://u:"+strings.Repeat("s3cr3t", 10_000)+"@h"),
			"key management_uri: has a part of more than 16384 bytes",
		},
		{
			"a management_uri that is none", data("host", "h", "username", "u", "password", "p", "management_uri", "x"+secret),
			"key management_uri: is not an http or https URL",
		},
		{
			"a CA that is none", data("host", "h", "username", "u", "password", "p", "ca.crt", secret),
			"key ca.crt: holds no PEM certificate",
		},
		{
			"a CA beyond all bounds", data("host", "h", "username", "u", "password", "p", "ca.crt", strings.Repeat(secret, 40_000)),
			"key ca.crt: is larger than 262144 bytes",
		},
		{
			"a certificate beyond all bounds",
			data("host", "h", "username", "u", "password", "p", "tls.crt", strings.Repeat(secret, 10_000), "tls.key", secret),
			"key tls.crt: is larger than 65536 bytes",
		},
		{
			"half of a pair", data("host", "h", "username", "u", "password", "p", "tls.crt", certificate),
			"keys tls.crt and tls.key: one of them is missing",
		},
		{
			"a pair that is none", data("host", "h", "username", "u", "password", "p", "tls.crt", certificate, "tls.key", secret),
			"keys tls.crt and tls.key: are not",
		},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := credentials.FromSecret(c.data)
			if err == nil || !strings.HasPrefix(err.Error(), c.want) || strings.Contains(err.Error(), "s3cr3t") {
				t.Errorf("want %q, got %v", c.want, err)
			}
		})
	}
}

// The part of a text that is left of a megabyte keeps all of it: clients of fifty Transports kept 48 MB.
func TestFromSecret_RefusesATextByItsLengthBeforeItTakesAPart(t *testing.T) {
	many := strings.Repeat("\n", 1_000_000)
	for key, value := range map[string]string{
		"host": "h" + many, "port": "1" + many, "username": "u" + many, "password": "p" + many, "vhost": "v" + many,
		"uri": "amqp://u:p@h/v?" + many, "management_uri": "http://m:q@h:1" + many,
	} {
		all := data("host", "h", "username", "u", "password", "p")
		all[key] = []byte(value)
		if _, err := credentials.FromSecret(all); err == nil || !strings.HasPrefix(err.Error(), "key "+key+": has ") {
			t.Errorf("key %s: %v", key, err)
		}
	}
	for _, end := range []string{"\n", "\r\n"} {
		password := strings.Repeat("p", 16<<10)
		got, err := credentials.FromSecret(data("host", "h"+end, "username", "u"+end, "password", password+end))
		if err != nil || got.Username != "u" || got.Password != password {
			t.Errorf("a line break at the end: %v", err)
		}
	}
}

func TestFromFiles_ReadsAFolder(t *testing.T) {
	dir := t.TempDir()
	for key, value := range map[string]string{"host": "h", "username": "u", "password": "p", "vhost": "v\n"} {
		if err := os.WriteFile(filepath.Join(dir, key), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := credentials.FromFiles(dir)
	if err != nil || got.AMQPURL(got.VHostOr(nil)) != "amqp://u:p@h:5672/v" {
		t.Errorf("got %v", err)
	}
	if _, err := credentials.FromFiles(t.TempDir()); err == nil {
		t.Error("an empty folder holds no credentials")
	}
}

func TestCredentials_HidesThePasswordInEveryForm(t *testing.T) {
	got, err := credentials.FromSecret(data("host", "h", "username", "u", "password", secret, "management_uri", "http://m:"+"s3cr3t@x"))
	if err != nil {
		t.Fatal(err)
	}
	end, err := got.Management()
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := json.Marshal(map[string]any{"a": got, "b": &got, "c": end})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "a", got, "b", &got, "c", end)
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "a", got, "b", &got, "c", end)
	texts := []string{string(asJSON), log.String()}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		texts = append(texts, fmt.Sprintf(verb, got), fmt.Sprintf(verb, &got), fmt.Sprintf(verb, end), fmt.Sprintf(verb, struct{ C any }{got}))
	}
	for _, text := range texts {
		if strings.Contains(text, "s3cr3t") || strings.Contains(text, fmt.Sprintf("%x", "s3cr3t")) {
			t.Errorf("it shows the password: %s", text)
		}
	}
}

// pair makes a certificate and its key.
func pair(t *testing.T) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return certificateOf(t, &private.PublicKey, private), encoded("PRIVATE KEY", der)
}

// certificateOf makes a certificate of a public key.
func certificateOf(t *testing.T, public crypto.PublicKey, signer crypto.Signer) string {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "broker"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, public, signer)
	if err != nil {
		t.Fatal(err)
	}
	return encoded("CERTIFICATE", der)
}

func encoded(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}
