// Package argocd holds what tells Argo CD the health of Redrive's kinds.
package argocd

import _ "embed" // for the files below

// HealthScript is the Lua script for both kinds.
//
//go:embed health.lua
var HealthScript string

// ConfigMapPatch is the script in the form in which Argo CD's ConfigMap takes it.
//
//go:embed argocd-cm-patch.yaml
var ConfigMapPatch []byte
