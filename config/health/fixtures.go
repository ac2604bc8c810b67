// Package health holds both kinds in every state that they can be seen in, to test what others read from them.
package health

import "embed"

// FS has the directory testdata with one folder for each result of kstatus, and the objects in it of which kstatus must
// say so.
//
//go:embed testdata/*/*.yaml
var FS embed.FS
