package handler

import (
	"strings"
	"testing"
)

// Whatever stood in place of a text was decoded: 64 KiB became 3 MiB of maps, and that for as many answers as there are at a time.
func TestNothingIsMadeOfWhatStandsInPlaceOfAText(t *testing.T) {
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

func TestTheTextsOfAProblemAreThoseOfItsJSON(t *testing.T) {
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
