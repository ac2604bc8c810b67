//go:build e2e

package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// minSecret is the length from which a password does not stand somewhere by chance.
const minSecret = 12

// secrets are the passwords in use, with what to search for.
type secrets struct {
	mu      sync.Mutex
	needles []needle
}

// needle is one form of a password.
type needle struct {
	owner string
	bytes []byte
}

// add remembers a password. core is the part of it that no escaping changes: it is in every spelling but base64, which a
// Secret's data and the Authorization header have.
func (s *secrets) add(owner, user, password, core string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	forms := []string{
		core,
		base64.StdEncoding.EncodeToString([]byte(password)),
		base64.StdEncoding.EncodeToString([]byte(user + ":" + password)),
	}
	for _, form := range forms {
		s.needles = append(s.needles, needle{owner, []byte(form)})
	}
}

// password makes one for a user, of which every character may go wrong somewhere, and remembers it.
func (s *secrets) password(owner, user string) login {
	core := rand.Text()
	l := login{user: user, password: "p:/@%+ \"" + core + "é#?"}
	s.add(owner, user, l.password, core)
	return l
}

// in tells whose passwords are in some data.
func (s *secrets) in(data []byte) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var owners []string
	for _, n := range s.needles {
		if bytes.Contains(data, n.bytes) && !slices.Contains(owners, n.owner) {
			owners = append(owners, n.owner)
		}
	}
	return owners
}

// search reads all the evidence, and the arguments of the processes that can be seen from here. It fails where a password
// is found, and where there is nothing to search.
func (e *evidence) search(s *secrets) error {
	var found []error
	logs := 0
	err := filepath.WalkDir(e.folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if strings.HasSuffix(path, ".log") && len(data) > 0 {
			logs++
		}
		for _, owner := range s.in(data) {
			found = append(found, fmt.Errorf("the password of the %s stands in %s", owner, path))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("search the evidence: %w", err)
	}
	if logs < 2 { // both operators at the least
		found = append(found, fmt.Errorf("the evidence in %s holds %d logs: nothing to search", e.folder, logs))
	}
	found = append(found, searchProcesses(s)...)
	if len(found) == 0 && !e.kept {
		return os.RemoveAll(e.folder)
	}
	return errors.Join(found...)
}

// searchProcesses looks at the arguments of all processes. Those of the pods are among them where the node is this machine.
func searchProcesses(s *secrets) []error {
	var found []error
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		for _, owner := range s.in(data) {
			program, _, _ := bytes.Cut(data, []byte{0})
			found = append(found, fmt.Errorf("the password of the %s stands in the arguments of %s", owner, program))
		}
	}
	return found
}

func TestSecrets_FindPasswordsInEverySpelling(t *testing.T) {
	s := &secrets{}
	s.add("shop", "user", `p:/@%+ "ABCDEFGHIJKLMNOP`, "ABCDEFGHIJKLMNOP")
	cases := map[string]struct {
		text string
		want bool
	}{
		"as it is":                 {`password=p:/@%+ "ABCDEFGHIJKLMNOP`, true},
		"in a URL":                 {"http://user:p%3A%2F%40%25+%20%22ABCDEFGHIJKLMNOP@host", true},
		"in JSON":                  {`{"password":"p:/@%+ \"ABCDEFGHIJKLMNOP"}`, true},
		"in a Secret's data":       {`{"password":"` + base64.StdEncoding.EncodeToString([]byte(`p:/@%+ "ABCDEFGHIJKLMNOP`)) + `"}`, true},
		"in a header of a request": {"Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(`user:p:/@%+ "ABCDEFGHIJKLMNOP`)), true},
		"not at all":               {"the broker refuses the login of user", false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := len(s.in([]byte(tc.text))) > 0; got != tc.want {
				t.Errorf("found is %t, want %t", got, tc.want)
			}
		})
	}
}
