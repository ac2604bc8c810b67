package broker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
)

// carrier is the transport of one call: it carries the context, which rabbit-hole does not know, keeps connections alive,
// which rabbit-hole forbids, turns refusals into errors, and bounds answers.
type carrier struct {
	ctx  context.Context //nolint:containedctx // It lives for one call, to carry the context past rabbit-hole.
	next http.RoundTripper
}

// RoundTrip sends one request.
func (c *carrier) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(c.ctx)
	request.Close = false
	response, err := c.next.RoundTrip(request)
	if err != nil {
		return nil, unreachable("", err)
	}
	response.Body = &bounded{ReadCloser: response.Body, left: maxResponse}
	if response.StatusCode < 200 || response.StatusCode > 299 {
		defer func() { _ = response.Body.Close() }()
		return nil, refusal(response)
	}
	return response, nil
}

// bounded refuses to read more than a limit.
type bounded struct {
	io.ReadCloser
	left int64
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left <= 0 {
		return 0, fmt.Errorf("the answer is larger than %d bytes", maxResponse)
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	n, err := b.ReadCloser.Read(p)
	b.left -= int64(n)
	return n, err //nolint:wrapcheck // io.EOF must stay what it is.
}

// decode reads JSON with its numbers as they are; into may be nil.
func decode(body io.Reader, into any) error {
	if into == nil {
		_, _ = io.Copy(io.Discard, body)
		return nil
	}
	decoder := json.NewDecoder(body)
	decoder.UseNumber()
	if err := decoder.Decode(into); err != nil {
		return fmt.Errorf("the answer is not what the management API gives: %w", err)
	}
	_, _ = io.Copy(io.Discard, body)
	return nil
}
