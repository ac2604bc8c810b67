package policytest

import (
	"encoding/xml"
	"fmt"
	"strings"
	"time"
)

// suites is the root of a report in the format of JUnit, as CI systems read it: one suite for each file.
type suites struct {
	XMLName  xml.Name `xml:"testsuites"`
	Name     string   `xml:"name,attr"`
	Tests    int      `xml:"tests,attr"`
	Failures int      `xml:"failures,attr"`
	Time     seconds  `xml:"time,attr"`
	Suites   []*suite `xml:"testsuite"`
}

type suite struct {
	Name     string     `xml:"name,attr"`
	Tests    int        `xml:"tests,attr"`
	Failures int        `xml:"failures,attr"`
	Errors   int        `xml:"errors,attr"`
	Skipped  int        `xml:"skipped,attr"`
	Time     seconds    `xml:"time,attr"`
	Cases    []testCase `xml:"testcase"`
}

type testCase struct {
	Name      string   `xml:"name,attr"`
	ClassName string   `xml:"classname,attr"`
	File      string   `xml:"file,attr"`
	Line      int      `xml:"line,attr"`
	Time      seconds  `xml:"time,attr"`
	Failure   *failure `xml:"failure"`
	Output    string   `xml:"system-out,omitempty"`
}

type failure struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr"`
	Text    string `xml:",chardata"`
}

// seconds is a span of time in seconds.
type seconds time.Duration

// MarshalText implements encoding.TextMarshaler.
func (s seconds) MarshalText() ([]byte, error) {
	return fmt.Appendf(nil, "%.6f", time.Duration(s).Seconds()), nil
}

// JUnit writes results as XML in the format of JUnit.
func JUnit(results []Result) ([]byte, error) {
	all := suites{Name: "redrive policy test"}
	byFile := map[string]*suite{}
	for i := range results {
		r := &results[i]
		s := byFile[r.File]
		if s == nil {
			s = &suite{Name: r.File}
			byFile[r.File] = s
			all.Suites = append(all.Suites, s)
		}
		s.add(r)
		all.Tests++
		all.Time += seconds(r.Took)
		if !r.Holds() {
			all.Failures++
		}
	}
	text, err := xml.MarshalIndent(all, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write the results as XML: %w", err)
	}
	return append([]byte(xml.Header), append(text, '\n')...), nil
}

func (s *suite) add(r *Result) {
	c := testCase{Name: r.Name, ClassName: r.Policy, File: r.File, Line: r.Line, Time: seconds(r.Took), Output: strings.Join(r.Problems, "\n")}
	if !r.Holds() {
		s.Failures++
		c.Failure = &failure{
			Message: strings.Join(r.Differences, "; "), Type: "difference",
			Text: fmt.Sprintf("%s:%d\npolicy %s: %s (%s)\n%s", r.File, r.Line, r.Policy, r.Got, r.Got.Explanation, strings.Join(r.Differences, "\n")),
		}
	}
	s.Tests++
	s.Time += seconds(r.Took)
	s.Cases = append(s.Cases, c)
}
