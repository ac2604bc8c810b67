// Package credentials reads how to reach a broker: from a Secret with Service Binding keys, from the files of a mounted
// one, or from URLs. Its errors name keys and never values, and what it returns never prints its password.
package credentials

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Keys of the Secret. Others, such as type, provider and default_user.conf, are ignored.
const (
	KeyHost          = "host"
	KeyPort          = "port"
	KeyUsername      = "username"
	KeyPassword      = "password"
	KeyURI           = "uri"
	KeyVHost         = "vhost"
	KeyManagementURI = "management_uri"
	KeyCA            = "ca.crt"
	KeyCert          = "tls.crt"
	KeyKey           = "tls.key"
)

// WorkerKeys are the keys that a worker reads: all but that of the management API.
func WorkerKeys() []string {
	return []string{KeyHost, KeyPort, KeyUsername, KeyPassword, KeyURI, KeyVHost, KeyCA, KeyCert, KeyKey}
}

const (
	amqpPort          = 5672
	amqpsPort         = 5671
	managementPort    = 15672
	managementTLSPort = 15671

	schemePlain  = "amqp"
	schemeSecure = "amqps"

	// maxFile bounds what is read of one file.
	maxFile = 1 << 20
)

// Credentials are how to reach a broker and as whom.
type Credentials struct {
	Host     string
	Port     int
	Username string
	Password string
	// VHost is empty where the source names none.
	VHost string
	// Secure is true where connections use TLS.
	Secure bool
	// CA holds PEM certificates to trust instead of the system's.
	CA []byte
	// Cert and Key are the client's own, in PEM; both or neither.
	Cert, Key []byte

	management managementEnd
	// managementPrefix is the path of the management API where the source gives no URL of it.
	managementPrefix string
}

// managementEnd is what the source says about the management API; empty where it says nothing.
type managementEnd struct {
	url                string
	username, password string
}

// FromSecret reads the data of a Secret: host, port, username and password, or uri; optionally vhost, management_uri,
// ca.crt, tls.crt and tls.key. Where there is a host, uri is not read.
func FromSecret(data map[string][]byte) (Credentials, error) {
	if err := checkLengths(data); err != nil {
		return Credentials{}, err
	}
	credentials := Credentials{
		Host: text(data, KeyHost), Username: text(data, KeyUsername), Password: text(data, KeyPassword), VHost: text(data, KeyVHost),
		CA: data[KeyCA], Cert: data[KeyCert], Key: data[KeyKey],
	}
	credentials.Secure = len(credentials.CA) > 0 || len(credentials.Cert) > 0
	var err error
	switch {
	case credentials.Host != "":
		err = setPort(&credentials, text(data, KeyPort))
	case text(data, KeyURI) != "":
		err = setURI(&credentials, KeyURI, text(data, KeyURI))
	default:
		err = credentials.missing(KeyHost + " (or " + KeyURI + ")")
	}
	if err != nil {
		return Credentials{}, err
	}
	if err := setManagement(&credentials, KeyManagementURI, text(data, KeyManagementURI)); err != nil {
		return Credentials{}, err
	}
	return credentials, credentials.check()
}

// As is the same broker with the username and password in the data of another Secret. A management_uri with a user keeps it.
func (c Credentials) As(data map[string][]byte) (Credentials, error) {
	if err := checkLengths(data); err != nil {
		return Credentials{}, err
	}
	c.Username, c.Password = text(data, KeyUsername), text(data, KeyPassword)
	return c, c.check()
}

// text is the value of a key without the end of a line, as editors leave it.
func text(data map[string][]byte, key string) string {
	return strings.TrimRight(string(data[key]), "\r\n")
}

// FromFiles reads the same keys from the files of a folder, as a mounted Secret has them.
func FromFiles(dir string) (Credentials, error) {
	data := map[string][]byte{}
	for _, key := range []string{
		KeyHost, KeyPort, KeyUsername, KeyPassword, KeyURI, KeyVHost, KeyManagementURI, KeyCA, KeyCert, KeyKey,
	} {
		path := filepath.Join(dir, key)
		info, err := os.Stat(path)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return Credentials{}, fmt.Errorf("read key %s: %w", key, err)
		}
		if info.Size() > maxFile {
			return Credentials{}, fmt.Errorf("key %s: file is larger than %d bytes", key, maxFile)
		}
		if data[key], err = os.ReadFile(path); err != nil { //nolint:gosec // The folder is the caller's, the keys are fixed.
			return Credentials{}, fmt.Errorf("read key %s: %w", key, err)
		}
	}
	return FromSecret(data)
}

// FromURLs reads an AMQP URL and, if it is not empty, the URL of the management API, which may have a user of its own.
func FromURLs(amqpURL, managementURL string) (Credentials, error) {
	var credentials Credentials
	if err := setURI(&credentials, "AMQP URL", amqpURL); err != nil {
		return Credentials{}, err
	}
	if err := setManagement(&credentials, "management URL", managementURL); err != nil {
		return Credentials{}, err
	}
	return credentials, credentials.check()
}

func setPort(c *Credentials, text string) error {
	if text == "" {
		c.Port = amqpPort
		if c.Secure {
			c.Port = amqpsPort
		}
		return nil
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil || port == 0 {
		return fmt.Errorf("key %s: is not a port number", KeyPort)
	}
	c.Port = int(port)
	c.Secure = c.Secure || c.Port == amqpsPort
	return nil
}

// setURI takes what is not set yet from an AMQP URI.
func setURI(c *Credentials, key, text string) error {
	// The error of url.Parse repeats the URL with its password.
	parsed, err := url.Parse(text)
	if err != nil || parsed.Hostname() == "" || (parsed.Scheme != schemePlain && parsed.Scheme != schemeSecure) {
		return fmt.Errorf("%s: is not a URL such as amqp://user:password@host:5672/vhost", describe(key))
	}
	c.Host = parsed.Hostname()
	c.Secure = parsed.Scheme == schemeSecure
	c.Port = amqpPort
	if c.Secure {
		c.Port = amqpsPort
	}
	if port := parsed.Port(); port != "" {
		number, err := strconv.ParseUint(port, 10, 16)
		if err != nil || number == 0 {
			return fmt.Errorf("%s: its port is not a port number", describe(key))
		}
		c.Port = int(number)
	}
	if parsed.User != nil && c.Username == "" && c.Password == "" {
		c.Username = parsed.User.Username()
		c.Password, _ = parsed.User.Password()
	}
	if c.VHost == "" {
		c.VHost = strings.TrimPrefix(parsed.Path, "/")
	}
	return nil
}

func setManagement(c *Credentials, key, text string) error {
	if text == "" {
		return nil
	}
	parsed, err := url.Parse(text)
	if err != nil || parsed.Hostname() == "" || (parsed.Scheme != "http" && parsed.Scheme != "https") {
		return fmt.Errorf("%s: is not an http or https URL", describe(key))
	}
	if parsed.RawQuery != "" || parsed.ForceQuery || parsed.Fragment != "" { // What follows a "?" alone would be the query, and not below the path.
		return fmt.Errorf("%s: must have no query and no fragment", describe(key))
	}
	if parsed.User != nil {
		c.management.username = parsed.User.Username()
		c.management.password, _ = parsed.User.Password()
	}
	if !isHost(parsed.Hostname()) {
		return fmt.Errorf("%s: its host is neither a DNS name nor an IP address", describe(key))
	}
	parsed.User = nil
	c.management.url = strings.TrimRight(parsed.String(), "/")
	return nil
}

func describe(key string) string {
	if strings.Contains(key, "URL") {
		return key
	}
	return "key " + key
}

// missing names all keys that are missing: these, and those of the login.
func (c Credentials) missing(keys ...string) error {
	if c.Username == "" {
		keys = append(keys, KeyUsername)
	}
	if c.Password == "" {
		keys = append(keys, KeyPassword)
	}
	if len(keys) == 1 {
		return fmt.Errorf("key %s: missing", keys[0])
	}
	return fmt.Errorf("keys %s: missing", strings.Join(keys, ", "))
}

func (c Credentials) check() error {
	if c.Username == "" || c.Password == "" {
		return c.missing()
	}
	if !isHost(c.Host) {
		return fmt.Errorf("key %s: is neither a DNS name nor an IP address", KeyHost)
	}
	if err := c.checkTexts(); err != nil {
		return err
	}
	if (len(c.Cert) == 0) != (len(c.Key) == 0) {
		return fmt.Errorf("keys %s and %s: one of them is missing", KeyCert, KeyKey)
	}
	_, err := readCertificates(c.CA, c.Cert, c.Key)
	return err
}

// The longest texts of a login, in bytes: the operator keeps them for each Transport, and they are a part of each of its requests. Names of RabbitMQ
// have at most 255 bytes; those of users in a directory, and tokens of OAuth that stand for passwords, are longer.
const (
	maxName     = 1 << 10
	maxPassword = 16 << 10
	maxURL      = 2 << 10
	// maxURI is that of a URL with a user and a password, which may be escaped.
	maxURI = 64 << 10
)

// checkLengths refuses what is too long before anything is taken from it: a part, however short, keeps all of it in memory. A line break may be at the end.
func checkLengths(data map[string][]byte) error {
	for _, text := range []struct {
		key  string
		most int
	}{
		{KeyHost, maxHost},
		{KeyPort, maxHost},
		{KeyUsername, maxName},
		{KeyPassword, maxPassword},
		{KeyVHost, maxName},
		{KeyURI, maxURI},
		{KeyManagementURI, maxURI},
	} {
		if len(data[text.key]) > text.most+len("\r\n") {
			return fmt.Errorf("key %s: has a part of more than %d bytes", text.key, text.most)
		}
	}
	return nil
}

// checkTexts refuses what is too long, and what is not UTF-8. A URL was parsed, and has no other bytes.
func (c Credentials) checkTexts() error {
	for _, part := range []struct {
		key, text string
		most      int
	}{
		{KeyUsername, c.Username, maxName},
		{KeyPassword, c.Password, maxPassword},
		{KeyVHost, c.VHost, maxName},
		{KeyManagementURI, c.management.url, maxURL},
		{KeyManagementURI, c.management.username, maxName},
		{KeyManagementURI, c.management.password, maxPassword},
	} {
		switch {
		case len(part.text) > part.most:
			return fmt.Errorf("key %s: has a part of more than %d bytes", part.key, part.most)
		case !utf8.ValidString(part.text):
			return fmt.Errorf("key %s: is not UTF-8", part.key)
		}
	}
	return nil
}

// maxHost is the length of the longest DNS name.
const maxHost = 253

// isHost is true for a DNS name, with underscores as Docker has them, and for an IP address. Whatever else a resolver might take
// stands in metrics, URLs and messages, too.
func isHost(text string) bool {
	if address, err := netip.ParseAddr(text); err == nil {
		return address.Zone() == ""
	}
	foreign := func(r rune) bool {
		return r != '.' && r != '-' && r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
	}
	return text != "" && len(text) <= maxHost && !strings.ContainsFunc(text, foreign)
}

// TLS returns the settings for secure connections, nil where Secure is false.
func (c Credentials) TLS() (*tls.Config, error) {
	if !c.Secure {
		return nil, nil //nolint:nilnil // nil is the client's own word for a plain connection.
	}
	return c.tlsConfig(c.Host)
}

func (c Credentials) tlsConfig(host string) (*tls.Config, error) {
	found, err := readCertificates(c.CA, c.Cert, c.Key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, RootCAs: found.roots, Certificates: found.own}, nil
}

// CertificateMemory is what the certificates take in memory when they are read.
func (c Credentials) CertificateMemory() int {
	found, err := readCertificates(c.CA, c.Cert, c.Key)
	if err != nil {
		return 0
	}
	return found.size
}

// VHostOr returns the vhost to use: the spec's if it names one, else the source's, else "/".
func (c Credentials) VHostOr(spec *string) string {
	switch {
	case spec != nil && *spec != "":
		return *spec
	case c.VHost != "":
		return c.VHost
	default:
		return "/"
	}
}

// Address is host:port of AMQP.
func (c Credentials) Address() string { return net.JoinHostPort(c.Host, strconv.Itoa(c.Port)) }

// Equal is true where sessions of both lead to the same broker, as the same user, with the same certificates.
func (c Credentials) Equal(other Credentials) bool {
	return c.Host == other.Host && c.Port == other.Port && c.Username == other.Username && c.Password == other.Password &&
		c.VHost == other.VHost && c.Secure == other.Secure &&
		bytes.Equal(c.CA, other.CA) && bytes.Equal(c.Cert, other.Cert) && bytes.Equal(c.Key, other.Key)
}

// ForUser is the data of a Secret by which workers reach the same broker, with the same certificates, as another user. The
// URI says whether that is by TLS, which host and port alone do not always; it holds no login.
func (c Credentials) ForUser(username, password, vhost string) map[string][]byte {
	end := url.URL{Scheme: schemePlain, Host: c.Address(), Path: "/" + vhost, RawPath: "/" + url.PathEscape(vhost)}
	if c.Secure {
		end.Scheme = schemeSecure
	}
	data := map[string][]byte{
		KeyURI: []byte(end.String()), KeyUsername: []byte(username), KeyPassword: []byte(password), KeyVHost: []byte(vhost),
	}
	for key, certificate := range map[string][]byte{KeyCA: c.CA, KeyCert: c.Cert, KeyKey: c.Key} {
		if len(certificate) > 0 {
			data[key] = certificate
		}
	}
	return data
}

// AMQPURL is the URL for an AMQP client. It holds the password and must not be shown.
func (c Credentials) AMQPURL(vhost string) string {
	scheme := schemePlain
	if c.Secure {
		scheme = schemeSecure
	}
	return (&url.URL{
		Scheme: scheme, User: url.UserPassword(c.Username, c.Password), Host: c.Address(),
		Path: "/" + vhost, RawPath: "/" + url.PathEscape(vhost),
	}).String()
}

// Management is the end of the management API.
type Management struct {
	// URL without user and without a slash at its end; it may have a path.
	URL      string
	Username string
	password string
	TLS      *tls.Config
}

// Password of the management API's user.
func (m Management) Password() string { return m.password }

// Format prints no password, whatever the verb.
func (m Management) Format(state fmt.State, _ rune) { _, _ = fmt.Fprint(state, m.URL) }

// LogValue shows the URL and nothing secret.
func (m Management) LogValue() slog.Value { return slog.StringValue(m.URL) }

// MarshalJSON shows the URL and nothing secret.
func (m Management) MarshalJSON() ([]byte, error) {
	return json.Marshal(m.URL) //nolint:wrapcheck // A string always marshals.
}

// Management returns where the management API is: what the source says, else port 15672 of the same host, or 15671 with
// TLS.
func (c Credentials) Management() (Management, error) {
	end := Management{URL: c.management.url, Username: c.Username, password: c.Password}
	if c.management.username != "" {
		end.Username, end.password = c.management.username, c.management.password
	}
	if end.URL == "" {
		end.URL = "http://" + net.JoinHostPort(c.Host, strconv.Itoa(managementPort))
		if c.Secure {
			end.URL = "https://" + net.JoinHostPort(c.Host, strconv.Itoa(managementTLSPort))
		}
		end.URL += c.managementPrefix
	}
	parsed, err := url.Parse(end.URL)
	if err != nil {
		return Management{}, fmt.Errorf("key %s: is not an http or https URL", KeyManagementURI)
	}
	if parsed.Scheme == "https" {
		if end.TLS, err = c.tlsConfig(parsed.Hostname()); err != nil {
			return Management{}, err
		}
	}
	return end, nil
}

// String shows the address and nothing secret.
func (c Credentials) String() string { return c.Address() }

// GoString shows the address and nothing secret.
func (c Credentials) GoString() string { return "credentials.Credentials{" + c.Address() + "}" }

// Format shows the address and nothing secret, whatever the verb.
func (c Credentials) Format(state fmt.State, _ rune) { _, _ = fmt.Fprint(state, c.Address()) }

// LogValue shows the address and nothing secret.
func (c Credentials) LogValue() slog.Value { return slog.StringValue(c.Address()) }

// MarshalJSON shows the address and nothing secret.
func (c Credentials) MarshalJSON() ([]byte, error) {
	return json.Marshal(c.Address()) //nolint:wrapcheck // A string always marshals.
}
