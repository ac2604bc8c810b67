package handler

import (
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"redrive.dev/redrive/api/v1alpha1"
	public "redrive.dev/redrive/handler"
)

const (
	// maxCarriedHeaders and maxCarried bound what a request carries of a message's headers: their number, and the bytes of their names,
	// values and entries in the index. Servers take requests of 100 headers (Python's http.server) and of 16 KiB of them (Node), and
	// the other half is for what Redrive tells and for the team's Secret.
	maxCarriedHeaders = 64
	maxCarried        = 8 << 10
	// maxOmitted bounds the names of headers that are left out.
	maxOmitted = 512
	// lineOverhead is what a header takes beside its name and its value.
	lineOverhead = len(": \r\n")

	headersIndex   = "Redrive-Headers-Index"
	headersOmitted = "Redrive-Headers-Omitted"

	// prefixNone is how a Transport says that there is no prefix.
	prefixNone = "None"
)

// headerRules say which headers of a message a request carries, and under which names.
type headerRules struct {
	// prefix of their names in its canonical spelling; empty for none.
	prefix string
	// all is true where each may pass, exact are the names of those that may, and starts what their names may begin with.
	all    bool
	exact  map[string]bool
	starts []string
}

func newHeaderRules(spec *v1alpha1.HTTPHeaders) (headerRules, error) {
	rules := headerRules{prefix: public.HTTPHeaderPrefix, all: spec == nil || len(spec.Allow) == 0, exact: map[string]bool{}}
	if spec == nil {
		return rules, nil
	}
	switch prefix := spec.Prefix; {
	case prefix == nil:
	case *prefix == prefixNone:
		rules.prefix = ""
	case !httpguts.ValidHeaderFieldName(*prefix) || !strings.HasSuffix(*prefix, "-"):
		return rules, fmt.Errorf("headers.prefix %q of the http handler: must be words of letters and digits with a '-' after each, or None", *prefix)
	default:
		rules.prefix = http.CanonicalHeaderKey(*prefix)
	}
	for _, name := range spec.Allow {
		if start, ok := strings.CutSuffix(name, "*"); ok {
			rules.starts = append(rules.starts, start)
		} else {
			rules.exact[name] = true
		}
	}
	return rules, nil
}

func (r *headerRules) allows(name string) bool {
	return r.all || r.exact[name] || slices.ContainsFunc(r.starts, func(start string) bool { return strings.HasPrefix(name, start) })
}

// carrier carries headers of a message over to a request.
type carrier struct {
	*fields
	headerRules

	// own are the message's headers.
	own map[string]any
	// count and left are how many headers, and how many bytes, may still be carried over.
	count, left int
	// used are the fields of names that are carried and are not their own field. next is, of a field that was taken, the number with
	// which the search for a free one goes on: what is taken stays so.
	used []string
	next map[string]int
	// index tells of the fields by which names and types they stand for, and omitted names what is left out.
	index, omitted []byte
	missing        int
	// secret are the names of headers of the team's Secret, as plainName spells them.
	secret map[string]bool
	// traced says that the attempt has a trace context of its own, which stands in place of the producer's, whole.
	traced bool
	// event says that those which are attributes of an event become such, unless it is structured: then its body has them.
	event, structured bool
}

// carryAll carries over the message's headers that fit, the same ones at every attempt: first those whose name is that of their field, then the
// others, each in the order of their names. A value that is too long is left out whole: half a value misleads.
func (c *carrier) carryAll() {
	if len(c.own) == 0 {
		return
	}
	c.count, c.left = maxCarriedHeaders, maxCarried
	simple, odd := make([]string, 0, len(c.own)), []string(nil)
	for name := range c.own {
		if isField(name) {
			simple = append(simple, name)
		} else {
			odd = append(odd, name)
		}
	}
	slices.Sort(simple)
	slices.Sort(odd)
	if c.event {
		odd = slices.DeleteFunc(odd, c.carryAttribute)
	}
	for _, name := range simple {
		c.carry(name, func() string { return name })
	}
	for _, name := range odd {
		c.carry(name, func() string { return c.fieldOf(name) })
	}
	c.tellOmitted()
}

// carryAttribute is true for a header that is an attribute of an event.
func (c *carrier) carryAttribute(name string) bool {
	attribute, ok := attributeOf(name)
	if !ok {
		return false
	}
	value := attributeValue(c.own[name])
	size := len(attribute) + len(value) + lineOverhead
	switch {
	case c.structured || c.has(attribute):
	case value == "" || c.count == 0 || size > c.left:
		c.omit(name)
	default:
		c.add(attribute, value)
		c.count--
		c.left -= size
	}
	return true
}

// carry adds a header of the message under a field, and what the index has to say of it.
func (c *carrier) carry(name string, fieldOf func() string) {
	if !c.allows(name) {
		return
	}
	if c.count == 0 || c.left < len(c.prefix)+1+lineOverhead { // which the shortest takes
		c.omit(name)
		return
	}
	value, kind, ok := encodeValue(c.own[name])
	if !ok || len(value) > c.left {
		c.omit(name)
		return
	}
	field := fieldOf()
	full := canonical(c.prefix, field)
	if field == "" || !c.mayCarry(full) {
		c.omit(name)
		return
	}
	before, listed := len(c.index), name != field || kind != "" || c.prefix == ""
	if listed {
		c.index = appendIndexEntry(c.index, name, field, kind)
	}
	size := len(full) + len(value) + lineOverhead + len(c.index) - before
	if size > c.left {
		c.index = c.index[:before]
		c.omit(name)
		return
	}
	c.left -= size
	c.count--
	if name != field {
		c.used = append(c.used, field)
	}
	c.add(full, value)
}

func appendIndexEntry(index []byte, name, field, kind string) []byte {
	if len(index) > 0 {
		index = append(index, ", "...)
	}
	index = append(index, field...)
	if name != field {
		index = appendName(append(index, '='), name)
	}
	if kind != "" {
		index = append(append(index, ';'), kind...)
	}
	return index
}

func (c *carrier) omit(name string) {
	c.missing++
	if len(c.omitted)+len(name) > maxOmitted {
		return
	}
	if len(c.omitted) > 0 {
		c.omitted = append(c.omitted, ", "...)
	}
	c.omitted = appendName(c.omitted, name)
}

func (c *carrier) tellOmitted() {
	if len(c.index) > 0 {
		c.add(headersIndex, string(c.index))
	}
	if c.missing > 0 {
		text := strconv.Itoa(c.missing)
		if len(c.omitted) > 0 {
			text += "; " + string(c.omitted)
		}
		c.add(headersOmitted, text)
	}
}

// mayCarry reports whether a message may set a header of the request, by its full name. With the usual prefix it may: a message is data from
// a producer, and there it speaks for nobody else. Else it does not frame the request, does not log in, does not say where the
// request comes from, what it is about or under which conditions it holds, and does not speak for Redrive nor for the team's Secret. In an event, it does
// not name attributes in the spelling of HTTP.
func (c *carrier) mayCarry(full string) bool {
	if c.prefix == public.HTTPHeaderPrefix {
		return true
	}
	plain := plainName(full)
	if c.traced && (plain == "traceparent" || plain == "tracestate") {
		return false
	}
	if c.event && (strings.HasPrefix(plain, "ce-") || strings.HasPrefix(plain, "cloudevents-")) {
		return false
	}
	return full != "" && !isReserved(plain) && !isAboutRequest(plain) && !c.secret[plain]
}

// isAboutRequest reports whether a header says of a request what no message may.
func isAboutRequest(plain string) bool {
	switch plain {
	case "authorization", "cookie", "cookie2", "proxy", // who asks
		"forwarded", "x-forwarded", "x-real-ip", "x-client-ip", "true-client-ip", "x-cluster-client-ip", "cf-connecting-ip", "via", // from where
		"origin", "referer", "from", "user-agent", "x-requested-with", // by way of which page or program
		"x-http-method", "x-http-method-override", "x-method-override", "x-original-url", "x-original-host", "x-host", "x-rewrite-url", // for what
		"accept", "range", "date", "cache-control", "pragma", "max-forwards", "early-data", "alt-used": // and how it is to be answered
		return true
	}
	for _, start := range [...]string{"x-forwarded-", "sec-", "if-", "accept-", "access-control-", "content-"} {
		if strings.HasPrefix(plain, start) {
			return true
		}
	}
	return false
}

// isField is true for a name that any server hands on as it is, but for the case: small letters, digits, and a dash here and there.
func isField(name string) bool {
	for i := range len(name) {
		c := name[i]
		if (c < 'a' || c > 'z') && (c < '0' || c > '9') && (c != '-' || i > 0 && name[i-1] == '-') {
			return false
		}
	}
	return name != ""
}

// fieldOf returns the field of a name that isField is not true for: in small letters, with a dash for whatever stands between letters and digits,
// and with a number at the end where that is taken.
func (c *carrier) fieldOf(name string) string {
	field := make([]byte, 0, len(name)+1)
	for i := range len(name) {
		b := name[i]
		if b >= 'A' && b <= 'Z' {
			b += 'a' - 'A'
		}
		switch {
		case b >= 'a' && b <= 'z' || b >= '0' && b <= '9':
			field = append(field, b)
		case len(field) == 0 || field[len(field)-1] != '-':
			field = append(field, '-')
		}
	}
	if len(field) == 0 {
		field = append(field, '-')
	}
	return c.freeField(string(field))
}

// freeField returns a field that no other header of the message has: this one, or with the first number after it that makes it so. Each
// try looks at a name that another header has, so more than are carried need not be tried; nor need those be tried again that were taken
// for the name before, of which a message may have thousands.
func (c *carrier) freeField(field string) string {
	if !c.isTaken(field) {
		return field
	}
	n, free := max(2, c.next[field]), ""
	for ; n <= maxCarriedHeaders; n++ {
		if numbered := field + "-" + strconv.Itoa(n); !c.isTaken(numbered) {
			free = numbered
			break
		}
	}
	if c.next == nil {
		c.next = map[string]int{}
	}
	c.next[field] = n
	return free
}

func (c *carrier) isTaken(field string) bool {
	if _, own := c.own[field]; own && c.allows(field) {
		return true
	}
	return slices.Contains(c.used, field)
}

// canonical returns a field's name after the prefix, in the spelling of net/http.
func canonical(prefix, field string) string {
	name := make([]byte, 0, len(prefix)+len(field))
	name = append(append(name, prefix...), field...)
	for i := len(prefix); i < len(name); i++ {
		if first := i == 0 || name[i-1] == '-'; first && name[i] >= 'a' && name[i] <= 'z' {
			name[i] -= 'a' - 'A'
		}
	}
	return string(name)
}
