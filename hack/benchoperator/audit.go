package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
)

// auditPolicy has the API server note each write of the manager, and nothing else.
const auditPolicy = `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted, Panic]
rules:
- level: Metadata
  users: [` + managerUser + `]
  verbs: [create, update, patch, delete, deletecollection]
- level: None
`

// written are the manager's writes to the API server so far, such as "patch configmaps". Leases, which only tell that a manager
// lives, are left out.
func (c *cluster) written() (counts, error) {
	file, err := os.Open(c.file("audit.log"))
	if errors.Is(err, os.ErrNotExist) {
		return counts{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the audit log: %w", err)
	}
	defer func() { _ = file.Close() }()
	all, lines := counts{}, bufio.NewReader(file)
	for {
		line, err := lines.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return all, nil // what has no end yet is counted the next time
		}
		if err != nil {
			return nil, fmt.Errorf("the audit log: %w", err)
		}
		var entry struct {
			Verb      string `json:"verb"`
			ObjectRef struct {
				Resource    string `json:"resource"`
				Subresource string `json:"subresource"`
			} `json:"objectRef"`
		}
		if err := json.Unmarshal(line, &entry); err != nil {
			return nil, fmt.Errorf("the audit log: %w", err)
		}
		what := entry.Verb + " " + entry.ObjectRef.Resource
		if entry.ObjectRef.Subresource != "" {
			what += "/" + entry.ObjectRef.Subresource
		}
		if entry.ObjectRef.Resource != "leases" {
			all[what]++
		}
	}
}

// total is the sum of all.
func (c counts) total() int {
	sum := 0
	for _, n := range c {
		sum += n
	}
	return sum
}
