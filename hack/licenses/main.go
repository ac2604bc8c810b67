// Command licenses lists the modules that the programs are built from with their licences, and fails where one is not among
// those that are allowed:
//
//	go run ./hack/licenses
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"redrive.dev/redrive/hack/modules"
)

func main() {
	all, err := modules.Of(context.Background(), ".", "./cmd/...", "./handler/...")
	if err == nil {
		err = check(os.Stdout, all)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "licenses:", err)
		os.Exit(1)
	}
}

// check prints the modules, and returns those that must not be used.
func check(out io.Writer, all []modules.Module) error {
	var wrong []string
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, module := range all {
		licences := strings.Join(module.Licences, ", ")
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\n", module.Path, module.Version, licences)
		refused := slices.ContainsFunc(module.Licences, func(l string) bool { return !slices.Contains(modules.Allowed(), l) })
		if refused || len(module.Licences) == 0 {
			wrong = append(wrong, module.Path+" ("+licences+")")
		}
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the modules: %w", err)
	}
	if len(wrong) > 0 {
		return fmt.Errorf("these are not under %s: %s", strings.Join(modules.Allowed(), ", "), strings.Join(wrong, ", "))
	}
	return nil
}
