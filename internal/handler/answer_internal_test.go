package handler

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/semaphore"

	"redrive.dev/redrive/internal/retry"
)

// Whatever stood in place of a text was decoded: 64 KiB became 3 MiB of maps, and that for as many answers as there are at a time.
func TestProblem_DecodesNothingInPlaceOfAText(t *testing.T) {
	tables := `[{"":0}` + strings.Repeat(`,{"":0}`, 9000) + `]`
	cases := map[string]func(){
		"a problem": func() {
			if class, text := problem([]byte(`{"type":` + tables + `,"title":` + tables + `,"detail":"d"}`)); class != "" || text != "d" {
				t.Errorf("class %q, text %q", class, text)
			}
		},
		"a frame": func() {
			if _, err := readFrame([]byte(`{"type":` + tables + `,"id":"1"}`)); err == nil {
				t.Error("it was taken")
			}
		},
	}
	for name, read := range cases {
		if n := testing.AllocsPerRun(1, read); n > 100 {
			t.Errorf("%s: %.0f allocations", name, n)
		}
	}
}

func TestProblem_HasTheTextsOfItsJSON(t *testing.T) {
	for body, want := range map[string][2]string{
		`{"type":"\u0041\n","title":"\ud83d\ude00","detail":"\ud83d"}`: {"A\n", "😀: \ufffd"},
		"{\"type\":\"\xff\",\"title\": \"a\" , \"detail\":null}":       {"\ufffd", "a"},
		`{"type":1,"type":"late","title":"a","title":{}}`:              {"late", ""},
		`{"type":"","title":true,"detail":"\"d\""}`:                    {"", `"d"`},
		`{"type":"a","title":"b"} c`:                                   {"", ""},
	} {
		if class, text := problem([]byte(body)); class != want[0] || text != want[1] {
			t.Errorf("%s: class %q, text %q", body, class, text)
		}
	}
}

// held is a body that its server holds back. It says whether the headers are still there meanwhile.
type held struct {
	io.Reader

	response *http.Response
	kept     int
}

func (b *held) Read(p []byte) (int, error) {
	b.kept += len(b.response.Header)
	return b.Reader.Read(p)
}

func (b *held) Close() error { return nil }

func TestHTTP_KeepsNoHeadersWhileAServerHoldsBackTheBody(t *testing.T) {
	h := &HTTP{clock: time.Now}
	for _, status := range []int{200, 503} {
		body := &held{Reader: strings.NewReader(`{"title":"No flour"}`)}
		body.response = &http.Response{StatusCode: status, Body: body, Header: http.Header{
			"Content-Type": {"application/problem+json"}, "Retry-After": {"7"}, "Redrive-Advice": {"retry"}, headerCarry: {"a%20b"}, "X": {"y"},
		}}
		failure, whole := h.judge(t.Context(), body.response, lost)
		if body.kept > 0 || !whole {
			t.Errorf("%d: %d headers are there while the body is read, whole %t", status, body.kept, whole)
		}
		if status == 200 {
			if failure != nil {
				t.Errorf("got %+v", failure)
			}
			continue
		}
		if failure.Message != "No flour" || *failure.RetryAfter != 7*time.Second || failure.Advice != retry.AdviseRetry || *failure.Carry != "a b" {
			t.Errorf("got %+v", failure)
		}
	}
}

// A partner holds back the ends of many long problems: those that find no room wait with their first bytes, and are whole once there is some.
func TestHTTP_BoundsHowManyLongProblemsItReadsAtOnce(t *testing.T) {
	h := &HTTP{clock: time.Now, problems: semaphore.NewWeighted(1)}
	long := `{"type":"stock","more":"` + strings.Repeat("x", 2*maxKeptAnswer) + `"}`
	first, end := io.Pipe()
	outcomes := make(chan *retry.Failure, 2)
	judge := func(ctx context.Context, body io.Reader) {
		response := &http.Response{StatusCode: http.StatusServiceUnavailable, Body: io.NopCloser(body), Header: http.Header{"Content-Type": {"application/problem+json"}}}
		failure, _ := h.judge(ctx, response, lost)
		outcomes <- failure
	}
	go judge(t.Context(), first)
	_, _ = io.WriteString(end, long[:maxKeptAnswer+1]) // returns when all of it was read: the room is taken

	second := strings.NewReader(long)
	brief, cancel := context.WithCancel(t.Context())
	cancel()
	judge(brief, second)
	if failure := <-outcomes; failure.Status != 503 || failure.Class != "" || second.Len() != len(long)-maxKeptAnswer {
		t.Errorf("without room: %+v, %d bytes not read", failure, second.Len())
	}
	go judge(t.Context(), strings.NewReader(long))
	_, _ = io.WriteString(end, long[maxKeptAnswer+1:])
	_ = end.Close()
	for range 2 {
		if failure := <-outcomes; failure.Class != "stock" {
			t.Errorf("with room: %+v", failure)
		}
	}
}

func TestProblem_IsReadBehindAByteOrderMark(t *testing.T) {
	t.Parallel()
	class, text := problem([]byte("\ufeff{\"type\": \"https://x/out\", \"title\": \"Out\"}"))
	if class != "https://x/out" || text != "Out" {
		t.Errorf("the class is %q, the text %q", class, text)
	}
}
