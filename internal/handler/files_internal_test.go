package handler

import (
	"errors"
	"testing"
)

// While the kubelet swaps a folder for another, a file of the old one may be gone for whoever is about to read it.
func TestSettled_ReadsFilesUntilTwoReadingsAgree(t *testing.T) {
	t.Parallel()
	type reading struct {
		ca  string
		err error
	}
	gone, other := errors.New("gone"), errors.New("other")
	for name, c := range map[string]struct {
		readings []reading // the last one again and again
		want     reading
	}{
		"at once":                            {[]reading{{ca: "new"}}, reading{ca: "new"}},
		"old ones and new ones":              {[]reading{{ca: "old"}, {ca: "new"}}, reading{ca: "new"}},
		"a file that is gone for a moment":   {[]reading{{err: gone}, {ca: "new"}}, reading{ca: "new"}},
		"one between two that are the same":  {[]reading{{ca: "old"}, {err: gone}, {ca: "new"}}, reading{ca: "new"}},
		"two that are gone after each other": {[]reading{{err: gone}, {err: other}, {ca: "new"}}, reading{ca: "new"}},
		"a file that is not there":           {[]reading{{err: gone}}, reading{err: gone}},
		"a file that goes":                   {[]reading{{ca: "old"}, {err: gone}}, reading{err: gone}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := 0
			got, err := settled(func() (content, error) {
				next := c.readings[min(n, len(c.readings)-1)]
				n++
				return content{ca: []byte(next.ca)}, next.err
			})
			if string(got.ca) != c.want.ca || !errors.Is(err, c.want.err) {
				t.Errorf("got %q, %v", got.ca, err)
			}
		})
	}
	n := 0
	if _, err := settled(func() (content, error) { n++; return content{ca: make([]byte, n)}, nil }); err == nil || n > 20 {
		t.Errorf("files that always change: %v after reading them %d times", err, n)
	}
}
