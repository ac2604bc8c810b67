package modules

import (
	"slices"
	"strings"
	"unicode"
)

// licence is known by sentences that all copies of it have, and others that none has. Words only: people break lines, number
// paragraphs and quote as they like.
type licence struct {
	name      string
	has, lack []string
}

const (
	redistribution = "redistribution and use in source and binary forms with or without modification are permitted provided that the following conditions are met"
	inBinaryForm   = "redistributions in binary form must reproduce the above copyright notice this list of conditions and the following disclaimer"
	noEndorsement  = "may be used to endorse or promote products derived from this software without specific prior written permission"
	advertising    = "all advertising materials mentioning features or use of this software"
)

func licences() []licence {
	return []licence{
		{name: "Apache-2.0", has: []string{
			"apache license version 2 0 january 2004", "terms and conditions for use reproduction and distribution", "grant of patent license",
		}},
		{name: "MIT", has: []string{
			"permission is hereby granted free of charge to any person obtaining a copy of this software and associated documentation files the software " +
				"to deal in the software without restriction including without limitation the rights to use copy modify merge publish distribute sublicense " +
				"and or sell copies of the software and to permit persons to whom the software is furnished to do so subject to the following conditions",
			"the above copyright notice and this permission notice shall be included in all copies or substantial portions of the software",
		}},
		{name: "BSD-2-Clause", has: []string{redistribution, inBinaryForm}, lack: []string{noEndorsement, advertising}},
		{name: "BSD-3-Clause", has: []string{redistribution, inBinaryForm, noEndorsement}, lack: []string{advertising}},
		{name: "BSD-4-Clause", has: []string{redistribution, advertising}},
		{name: "ISC", has: []string{
			"permission to use copy modify and or distribute this software for any purpose with or without fee is hereby granted provided that the above " +
				"copyright notice and this permission notice appear in all copies",
		}},
		{name: "Unlicense", has: []string{"this is free and unencumbered software released into the public domain"}},
		{name: "MPL-2.0", has: []string{"mozilla public license version 2 0", "covered software"}},
		{name: "EPL-2.0", has: []string{"eclipse public license v 2 0"}},
		{name: "AGPL", has: []string{"gnu affero general public license version 3"}},
		{name: "LGPL", has: []string{"gnu lesser general public license version"}},
		{name: "GPL", has: []string{"gnu general public license version"}},
		{name: "BUSL", has: []string{"business source license 1 1"}},
		{name: "SSPL", has: []string{"server side public license"}},
	}
}

// Identify returns the licences in a text, as SPDX names them; none where it knows none.
func Identify(text string) []string {
	words := " " + strings.Join(strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return !unicode.IsLetter(r) && !unicode.IsDigit(r)
	}), " ") + " "
	holds := func(sentence string) bool { return strings.Contains(words, " "+sentence+" ") }
	var found []string
	for _, l := range licences() {
		lacks := func(sentence string) bool { return !holds(sentence) }
		if !slices.ContainsFunc(l.has, lacks) && !slices.ContainsFunc(l.lack, holds) {
			found = append(found, l.name)
		}
	}
	return found
}

// Allowed are the licences under which what a program is built from may be: they let it be given on under the Apache License.
func Allowed() []string {
	return []string{"Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT"}
}
