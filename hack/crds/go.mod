// What it needs stands in the modfile of each version: 1.25.mod and so on.
module redrive.dev/redrive/hack/crds

go 1.26.0
