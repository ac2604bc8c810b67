package tracing

import (
	"bytes"
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

const (
	// defaultEndpoint is the standard's, for a collector beside the program.
	defaultEndpoint = "http://localhost:4318"
	tracesPath      = "v1/traces"
	defaultTimeout  = 10 * time.Second
)

// settings are what the environment says about the way to the collector.
type settings struct {
	endpoint *url.URL
	headers  http.Header
	// timeout of sending a batch of spans, further tries included.
	timeout time.Duration
	gzip    bool
	// tls is what the files held at first, and renewed reads them again.
	tls     *tls.Config
	renewed func() (*tls.Config, error)
}

// environment looks up variables; an empty one is as good as none.
type environment func(name string) string

// forTraces looks up a variable of the exporter: the one for traces alone, else the one for all signals.
func (e environment) forTraces(name string) (value, from string) {
	from = "OTEL_EXPORTER_OTLP_TRACES_" + name
	if value = strings.TrimSpace(e(from)); value != "" {
		return value, from
	}
	from = "OTEL_EXPORTER_OTLP_" + name
	return strings.TrimSpace(e(from)), from
}

// read gives the settings; nil where traces are off. The error names the variable, and no value that may hold a secret.
func read(env environment) (*settings, error) {
	if on, err := env.enabled(); !on || err != nil {
		return nil, err
	}
	s := &settings{headers: http.Header{}, timeout: defaultTimeout}
	for _, step := range []func(environment) error{
		s.readProtocol, s.readEndpoint, s.readHeaders, s.readTimeout, s.readCompression, s.readTLS, checkSampler,
	} {
		if err := step(env); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (e environment) enabled() (bool, error) {
	if strings.EqualFold(strings.TrimSpace(e("OTEL_SDK_DISABLED")), "true") {
		return false, nil
	}
	switch exporter := strings.TrimSpace(e("OTEL_TRACES_EXPORTER")); exporter {
	case "otlp":
		return true, nil
	case "none":
		return false, nil
	case "":
		endpoint, _ := e.forTraces("ENDPOINT")
		return endpoint != "", nil
	default:
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %q: it is otlp or none", exporter)
	}
}

func (*settings) readProtocol(env environment) error {
	if protocol, from := env.forTraces("PROTOCOL"); protocol != "" && protocol != "http/protobuf" {
		return fmt.Errorf("%s is %q: only http/protobuf is spoken here; collectors have it on port 4318", from, protocol)
	}
	return nil
}

// readEndpoint takes the endpoint for traces as it is, and appends the path to the one for all signals.
func (s *settings) readEndpoint(env environment) error {
	text, from := env.forTraces("ENDPOINT")
	// The error of Parse would show what is in the URL.
	endpoint, err := url.Parse(cmp.Or(text, defaultEndpoint))
	if err != nil || endpoint.Scheme != "http" && endpoint.Scheme != "https" || endpoint.Host == "" {
		return fmt.Errorf("%s is not an http or https URL, such as %s", from, defaultEndpoint)
	}
	if !strings.Contains(from, "TRACES") {
		endpoint = endpoint.JoinPath(tracesPath)
	}
	if endpoint.Path == "" {
		endpoint.Path = "/"
	}
	s.endpoint = endpoint
	return nil
}

// readHeaders reads name=value pairs with commas between, percent-encoded.
func (s *settings) readHeaders(env environment) error {
	text, from := env.forTraces("HEADERS")
	for i, pair := range strings.Split(text, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		name, value, found := strings.Cut(pair, "=")
		name, nameErr := url.PathUnescape(strings.TrimSpace(name))
		value, valueErr := url.PathUnescape(strings.TrimSpace(value))
		if !found || nameErr != nil || valueErr != nil || !isToken(name) || strings.ContainsFunc(value, isControl) {
			return fmt.Errorf("%s: entry %d is not name=value, percent-encoded", from, i+1)
		}
		s.headers.Set(name, value)
	}
	return nil
}

func isToken(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return r <= ' ' || r > '~' || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, r)
	})
}

func isControl(r rune) bool { return r < ' ' || r == 0x7f }

func (s *settings) readTimeout(env environment) error {
	text, from := env.forTraces("TIMEOUT")
	if text == "" {
		return nil
	}
	milliseconds, err := strconv.Atoi(text)
	if err != nil || milliseconds <= 0 || milliseconds > int(time.Hour/time.Millisecond) {
		return fmt.Errorf("%s is %q: it is a number of milliseconds", from, text)
	}
	s.timeout = time.Duration(milliseconds) * time.Millisecond
	return nil
}

func (s *settings) readCompression(env environment) error {
	switch text, from := env.forTraces("COMPRESSION"); text {
	case "", "none":
	case "gzip":
		s.gzip = true
	default:
		return fmt.Errorf("%s is %q: it is gzip or none", from, text)
	}
	return nil
}

// readTLS reads the files of the environment, and keeps the way to read them again: who renews certificates writes new files.
func (s *settings) readTLS(env environment) (err error) {
	s.renewed = env.tls
	s.tls, err = env.tls()
	return err
}

// tls reads the authority of the collector's certificate and the certificate of this program.
func (e environment) tls() (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if file, from := e.forTraces("CERTIFICATE"); file != "" {
		authority, err := os.ReadFile(file) //nolint:gosec // whoever sets the environment names it
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(authority) {
			return nil, fmt.Errorf("%s: %s holds no certificate in PEM", from, file)
		}
	}
	certificate, from := e.forTraces("CLIENT_CERTIFICATE")
	key, keyFrom := e.forTraces("CLIENT_KEY")
	if certificate == "" && key == "" {
		return config, nil
	}
	own, err := tls.LoadX509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s: %w", from, keyFrom, err)
	}
	config.Certificates = []tls.Certificate{own}
	return config, nil
}

// haveSameCertificates tells whether two readings of the files found the same.
func haveSameCertificates(a, b *tls.Config) bool {
	return a.RootCAs.Equal(b.RootCAs) && slices.EqualFunc(a.Certificates, b.Certificates, func(a, b tls.Certificate) bool {
		return slices.EqualFunc(a.Certificate, b.Certificate, bytes.Equal)
	})
}

// checkSampler refuses what the SDK would tell nobody about but standard error, in words of its own.
func checkSampler(env environment) error {
	const variable, argument = "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"
	switch sampler := strings.ToLower(strings.TrimSpace(env(variable))); sampler {
	case "traceidratio", "parentbased_traceidratio":
		text := strings.TrimSpace(env(argument))
		if ratio, err := strconv.ParseFloat(text, 64); text != "" && (err != nil || !(ratio >= 0 && ratio <= 1)) {
			return fmt.Errorf("%s is %q: it is a number from 0 to 1", argument, text)
		}
		return nil
	case "", "always_on", "always_off", "parentbased_always_on", "parentbased_always_off":
		return nil
	default:
		return errors.New(variable + " is " + strconv.Quote(sampler) + ": it is always_on, always_off, traceidratio, or one of these after parentbased_")
	}
}
