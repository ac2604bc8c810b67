package modules

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestIdentify_TellsLicencesByTheirWords(t *testing.T) {
	apache, err := os.ReadFile("../../LICENSE")
	if err != nil {
		t.Fatal(err)
	}
	root, err := exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	golang, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	const mit = `Permission is hereby granted, free of charge, to any person obtaining a copy of this software and associated documentation files (the
"Software"), to deal in the Software without restriction, including without limitation the rights to use, copy, modify, merge, publish, distribute,
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is furnished to do so, subject to the following conditions:
The above copyright notice and this permission notice shall be included in all copies or substantial portions of the Software.`
	tests := map[string]struct {
		text string
		want []string
	}{
		"Apache":                           {string(apache), []string{"Apache-2.0"}},
		"Go's own":                         {string(golang), []string{"BSD-3-Clause"}},
		"the same without its last clause": {withoutEndorsement(string(golang)), []string{"BSD-2-Clause"}},
		"the same with advertising":        {string(golang) + "\nAll advertising materials mentioning features or use of this software must", []string{"BSD-4-Clause"}},
		"MIT":                              {mit, []string{"MIT"}},
		"MIT in other lines":               {strings.ReplaceAll(mit, " ", "\n * "), []string{"MIT"}},
		"MIT with a right less":            {strings.Replace(mit, "sublicense, ", "", 1), nil},
		"two in one file":                  {string(apache) + mit, []string{"Apache-2.0", "MIT"}},
		"one that is not allowed":          {"GNU GENERAL PUBLIC LICENSE\nVersion 3, 29 June 2007", []string{"GPL"}},
		"none":                             {"All rights reserved.", nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Identify(tt.text); !slices.Equal(got, tt.want) {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

func withoutEndorsement(text string) string {
	before, rest, _ := strings.Cut(text, "* Neither the name")
	_, after, _ := strings.Cut(rest, "specific prior written permission.")
	return before + after
}

func TestModules_RefuseAnUnknownLicence(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "LICENSE.txt"), []byte("You may look at it."), 0o600); err != nil {
		t.Fatal(err)
	}
	const says = "example.org/x@v1.0.0: LICENSE.txt is a licence that hack/modules does not know"
	err := place{"example.org/x", "v1.0.0", folder, folder}.addTo(map[string]*Module{})
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want %q", err, says)
	}
}

func TestOf_FindsTheModulesOfAProgramWithLicences(t *testing.T) {
	all, err := Of(t.Context(), "../..", "./cmd/worker")
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(m Module) bool { return m.Path == "github.com/rabbitmq/amqp091-go" })
	if i < 0 || all[i].Version == "" || !slices.Equal(all[i].Licences, []string{"BSD-2-Clause"}) || len(all[i].Texts) == 0 {
		t.Errorf("the client of RabbitMQ is not among %d modules, or without its licence", len(all))
	}
	if slices.ContainsFunc(all, func(m Module) bool { return m.Path == "redrive.dev/redrive" }) {
		t.Error("the repository is among its own modules")
	}
}
