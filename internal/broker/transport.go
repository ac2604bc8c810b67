package broker

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"reflect"

	"redrive.dev/redrive/internal/credentials"
)

// carrier is the transport of one call: it carries the context, which rabbit-hole does not know, keeps connections alive,
// which rabbit-hole forbids, turns refusals into errors, and bounds answers.
type carrier struct {
	ctx  context.Context //nolint:containedctx // It lives for one call, to carry the context past rabbit-hole.
	next http.RoundTripper
}

// RoundTrip sends one request. It follows no redirect: the login is for the broker that the URL names.
func (c *carrier) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(c.ctx)
	request.Close = false
	var response *http.Response
	var err error
	Await(c.ctx, func() { response, err = c.next.RoundTrip(request) }) //nolint:bodyclose // as below
	if err != nil {
		return nil, unreachable("", credentials.ExplainTLS(request.URL.Host, err))
	}
	response.Body = &bounded{ReadCloser: response.Body, ctx: c.ctx, left: maxResponse}
	if err := judge(request.Method, response); err != nil {
		_ = response.Body.Close()
		return nil, err
	}
	return response, nil
}

// judge is nil for the answers that the management API gives where it did as asked: 200 to what was read, and 201 or 204 to
// what was written. A page with the status 200 in answer to a write is somebody else's.
func judge(method string, response *http.Response) error {
	status := response.StatusCode
	switch {
	case method == http.MethodGet && status == http.StatusOK:
		return nil
	case method != http.MethodGet && (status == http.StatusCreated || status == http.StatusNoContent):
		return nil
	case status >= http.StatusBadRequest:
		return refusal(response)
	case status >= http.StatusMultipleChoices:
		return garbledAnswer(response, "it redirects to "+redirected(response)+", and redirects are not followed: "+
			"key "+credentials.KeyManagementURI+" must name the management API itself")
	default:
		return garbledAnswer(response, "it is "+contentType(response)+", with a status that the management API does not use")
	}
}

// redirected is the host of a redirect: the rest may hold what must not be shown.
func redirected(response *http.Response) string {
	to, err := url.Parse(response.Header.Get("Location"))
	switch {
	case err != nil || *to == (url.URL{}):
		return "nowhere"
	case to.Host == "":
		return "another path"
	default:
		return fmt.Sprintf("%.100q", to.Host)
	}
}

// Bounds of an answer, so that what is kept of it is bounded too: a list of rows that are next to nothing would otherwise take a
// hundred times the memory that its text takes. 10,000 queues are 10,000 rows, 250,000 values and 3 MB.
const (
	maxRows   = 50_000
	maxRow    = 64 << 10
	maxValues = 1_500_000
)

var (
	errTooLarge = fmt.Errorf("it is larger than %d bytes", maxResponse)
	errTooMany  = fmt.Errorf("it has more than %d rows, or %d values", maxRows, maxValues)
	errRow      = fmt.Errorf("a row of it is larger than %d bytes", maxRow)
)

// bounded refuses to read more than a limit.
type bounded struct {
	io.ReadCloser
	ctx  context.Context //nolint:containedctx // It lives for one call.
	left int64
}

func (b *bounded) Read(p []byte) (n int, err error) {
	if b.left <= 0 {
		return 0, errTooLarge
	}
	if int64(len(p)) > b.left {
		p = p[:b.left]
	}
	Await(b.ctx, func() { n, err = b.ReadCloser.Read(p) })
	b.left -= int64(n)
	return n, err //nolint:wrapcheck // io.EOF must stay what it is.
}

// rowReader refuses to read on in a row that is too large, and in a list of too many values. The meter of its context is told of the text of the longest
// row, until that is read: the decoder keeps it twice while it grows.
type rowReader struct {
	io.Reader
	ctx context.Context //nolint:containedctx // It lives for one answer.
	// read is how much was read, of which the rows until done are complete. The meter was told of longest bytes.
	read, done, longest int64
	values              int
}

func (r *rowReader) Read(p []byte) (int, error) {
	left := r.done + maxRow - r.read
	if left <= 0 {
		return 0, errRow
	}
	n, err := r.Reader.Read(p[:min(int64(len(p)), left)])
	r.read += int64(n)
	if more := r.read - r.done - r.longest; more > 0 {
		r.longest += more
		if err := take(r.ctx, 2*int(more)); err != nil {
			return 0, err
		}
	}
	// A comma within a text counts as well, which does no harm.
	if r.values += bytes.Count(p[:n], []byte(",")); r.values > maxValues {
		return 0, errTooMany
	}
	return n, err //nolint:wrapcheck // io.EOF must stay what it is.
}

// close tells the meter that the text is not kept any more.
func (r *rowReader) close() { _ = take(r.ctx, -2*int(r.longest)) }

// decode reads JSON with its numbers as they are: an object into a struct, or a list into a slice. into may be nil.
func decode(ctx context.Context, response *http.Response, into any) error {
	if into == nil {
		_, _ = io.Copy(io.Discard, response.Body)
		return nil
	}
	body := bufio.NewReader(response.Body)
	if err := begins(body, into); err != nil {
		return unreadable(response, err)
	}
	rows := &rowReader{Reader: body, ctx: ctx}
	defer rows.close()
	decoder := json.NewDecoder(rows)
	decoder.UseNumber()
	read := decoder.Decode
	if isList(into) {
		read = func(into any) error { return decodeRows(ctx, decoder, rows, reflect.ValueOf(into).Elem()) }
	}
	if err := read(into); err != nil {
		return unreadable(response, err)
	}
	if _, err := decoder.Token(); err != io.EOF {
		return unreadable(response, errors.Join(errFollows, err))
	}
	return nil
}

// decodeRows reads a list row by row.
func decodeRows(ctx context.Context, decoder *json.Decoder, from *rowReader, into reflect.Value) error {
	if _, err := decoder.Token(); err != nil {
		return err //nolint:wrapcheck // the caller tells what it means
	}
	for decoder.More() {
		row := reflect.New(into.Type().Elem())
		if err := decoder.Decode(row.Interface()); err != nil {
			return err //nolint:wrapcheck // the caller tells what it means
		}
		if into.Set(reflect.Append(into, row.Elem())); into.Len() > maxRows {
			return errTooMany
		}
		from.done = decoder.InputOffset()
		if err := metered(ctx, row.Elem()); err != nil {
			return err
		}
	}
	_, err := decoder.Token()
	return err //nolint:wrapcheck // the caller tells what it means
}

func isList(into any) bool { return reflect.TypeOf(into).Elem().Kind() == reflect.Slice }

var (
	errFollows = errors.New("something follows its end")
	errShape   = errors.New("it is JSON of another shape")
)

// begins looks whether a list or an object comes, as is wanted. The decoder would take null for either, and for empty.
func begins(body *bufio.Reader, into any) error {
	want := byte('{')
	if isList(into) {
		want = '['
	}
	for {
		first, err := body.Peek(1)
		if err != nil {
			return err //nolint:wrapcheck // the caller tells what it means
		}
		switch first[0] {
		case ' ', '\t', '\r', '\n':
			_, _ = body.Discard(1)
		case want:
			return nil
		case '[', '{', 'n', '"', 't', 'f':
			return errShape
		default:
			return &json.SyntaxError{}
		}
	}
}

// unreadable says why an answer cannot be read, and nothing of what is in it.
func unreadable(response *http.Response, err error) error {
	if known := firstOf(err, errTooLarge, errTooMany, errRow); known != nil {
		return garbledAnswer(response, known.Error()+culprit(response.Request))
	}
	if known := firstOf(err, errFollows, errShape); known != nil {
		return garbledAnswer(response, known.Error())
	}
	var syntax *json.SyntaxError
	var shape *json.UnmarshalTypeError
	switch {
	case errors.As(err, &shape):
		return garbledAnswer(response, errShape.Error())
	case errors.As(err, &syntax):
		return garbledAnswer(response, "it is "+contentType(response)+" and not JSON")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return garbledAnswer(response, "it ends too early")
	default:
		return err
	}
}

// firstOf is the first of some errors that another one is; nil where it is none of them.
func firstOf(err error, known ...error) error {
	for _, candidate := range known {
		if errors.Is(err, candidate) {
			return candidate
		}
	}
	return nil
}
