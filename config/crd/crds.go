// Package crd holds the CustomResourceDefinitions of Redrive, for programs that validate without a cluster.
package crd

import "embed"

// FS holds one file for each kind in the directory bases.
//
//go:embed bases/*.yaml
var FS embed.FS
