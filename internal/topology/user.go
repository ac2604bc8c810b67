package topology

import (
	"crypto/sha256"
	"encoding/base32"
	"maps"
	"regexp"
	"slices"
	"strings"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/compile"
)

const (
	// maxUserName bounds the name of a user where those of namespace and Transport are long. RabbitMQ takes 255 bytes.
	maxUserName = 128
	// userHash is as long as makes it certain that no two owners get the same name.
	userHash = 16
)

// Rights are what a user may do in a vhost, as patterns of names.
type Rights struct {
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`
}

// UserBase is what the names of a Transport's own users begin with but for the hash of their owner, which is not known everywhere.
func UserBase(t *v1alpha1.Transport) string {
	base := "redrive-" + t.Namespace + "-" + t.Name
	return base[:min(len(base), maxUserName-userHash-len("--a"))]
}

// UserNames are those of the two users that a Transport's workers have in turn. The hash is of the owner, so neither another cluster
// nor a dash in a name leads to the same ones.
func UserNames(t *v1alpha1.Transport, owner string) [2]string {
	sum := sha256.Sum256([]byte(owner))
	base := UserBase(t) + "-" + strings.ToLower(base32.StdEncoding.EncodeToString(sum[:]))[:userHash]
	return [2]string{base + "-a", base + "-b"}
}

// WorkerRights are what workers need that consume these queues, and no more: they configure nothing.
func WorkerRights(names compile.Names, queues []string) Rights {
	return Rights{
		Configure: "^$", Write: anyOf([]string{names.Failed(), names.Fallback(), names.Return()}), Read: familiesOf(queues),
	}
}

// familiesOf is the pattern that matches some queues and no other. The name of a queue stands in it once for all that are named after it:
// RabbitMQ refuses patterns that are too long, and 64 queues may have long names.
func familiesOf(queues []string) string {
	bases, families := map[string][]string{}, map[string][]string{}
	for _, name := range slices.Sorted(slices.Values(queues)) {
		base, suffix := name, ""
		for _, known := range []string{compile.QuarantineSuffix, compile.Names{}.StandinQueue("")} {
			if cut, is := strings.CutSuffix(name, known); is && slices.Contains(queues, cut) {
				base, suffix = cut, known
			}
		}
		if !slices.Contains(bases[base], regexp.QuoteMeta(suffix)) {
			bases[base] = append(bases[base], regexp.QuoteMeta(suffix))
		}
	}
	for _, base := range slices.Sorted(maps.Keys(bases)) {
		ends := "(" + strings.Join(bases[base], "|") + ")"
		if ends == "()" {
			ends = ""
		}
		families[ends] = append(families[ends], regexp.QuoteMeta(base))
	}
	patterns := make([]string, 0, len(families))
	for _, ends := range slices.Sorted(maps.Keys(families)) {
		patterns = append(patterns, "("+strings.Join(families[ends], "|")+")"+ends)
	}
	switch len(patterns) {
	case 0:
		return "^$"
	case 1:
		return "^" + patterns[0] + "$"
	default:
		return "^(" + strings.Join(patterns, "|") + ")$"
	}
}

// Suffice is true where the rights allow what others do to the workers that consume these queues.
func (r Rights) Suffice(others Rights, queues []string) bool {
	read, err := regexp.Compile(r.Read)
	return err == nil && r.Write == others.Write && !slices.ContainsFunc(queues, func(name string) bool { return !read.MatchString(name) })
}
