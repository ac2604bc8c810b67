package httpserver_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"redrive.dev/redrive/internal/httpserver"
)

func TestLimitEach_RefusesAnAddressThatAsksTooOftenAndNoOther(t *testing.T) {
	t.Parallel()
	const burst = 5
	handler := httpserver.LimitEach(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}), 1, burst)
	status := func(address string) int {
		request, answer := httptest.NewRequest(http.MethodGet, "/metrics", nil), httptest.NewRecorder()
		request.RemoteAddr = address
		handler.ServeHTTP(answer, request)
		return answer.Code
	}
	answered := 0
	for range 100 * burst {
		if status("10.0.0.1:1") == http.StatusOK {
			answered++
		}
	}
	if answered < burst || answered > 10*burst {
		t.Errorf("%d of 500 requests are answered, want about %d", answered, burst)
	}
	if status("10.0.0.1:2") != http.StatusTooManyRequests {
		t.Error("another port of the same address is answered")
	}
	if status("[fd00::1]:1") != http.StatusOK {
		t.Error("another address is refused")
	}
}
