package message

// The names by which W3C Trace Context is carried in the headers of a message, as producers' instrumentations write them.
const (
	traceparentHeader = "traceparent"
	tracestateHeader  = "tracestate"
)

const (
	// traceparentSize is the length of a traceparent of version 00: version, trace, span and flags in hexadecimal.
	traceparentSize = 2 + 1 + 32 + 1 + 16 + 1 + 2
	// maxTraceparent is the longest of a later version that is taken.
	maxTraceparent = 128
	// maxTracestate is the longest tracestate that is handed on; 512 characters are the least that it should be.
	maxTracestate = 2048
)

// TraceContext returns the W3C trace context that a producer put into the headers, empty where there is none. What is not
// in the form of one is none: it is handed on in the environment of processes and in requests.
func TraceContext(headers map[string]any) (traceparent, tracestate string) {
	traceparent, _ = textual(headers[traceparentHeader])
	if !isTraceparent(traceparent) {
		return "", ""
	}
	tracestate, _ = textual(headers[tracestateHeader])
	if len(tracestate) > maxTracestate || !isPrintable(tracestate) {
		tracestate = ""
	}
	return traceparent, tracestate
}

// isTraceparent accepts versions to come, which may have more at the end.
func isTraceparent(text string) bool {
	if len(text) < traceparentSize || len(text) > maxTraceparent || text[2] != '-' || text[35] != '-' || text[52] != '-' {
		return false
	}
	version, trace, span, flags := text[:2], text[3:35], text[36:52], text[53:traceparentSize]
	for _, part := range [...]string{version, trace, span, flags} {
		if !isHex(part) {
			return false
		}
	}
	if version == "ff" || isZero(trace) || isZero(span) {
		return false
	}
	rest := text[traceparentSize:]
	return rest == "" || version != "00" && rest[0] == '-' && isPrintable(rest)
}

func isHex(text string) bool {
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

func isZero(text string) bool {
	for i := range len(text) {
		if text[i] != '0' {
			return false
		}
	}
	return true
}

// isPrintable is true for text that has its place in a header of HTTP and in an environment.
func isPrintable(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' {
			return false
		}
	}
	return true
}

// traceparent returns the span of the last attempt, empty where it was not traced.
func (r *reader) traceparent() string {
	text := r.text(HeaderTraceparent, traceparentSize)
	if text != "" && !isTraceparent(text) {
		r.reject(HeaderTraceparent)
		return ""
	}
	return text
}
