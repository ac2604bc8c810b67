package controllers

import (
	"strings"
	"testing"

	"redrive.dev/redrive/internal/brokerpool"
	"redrive.dev/redrive/internal/brokersource"
)

func TestWarnOfAdmin_WarnsOfAnAdministratorsLoginOfATeam(t *testing.T) {
	own, admin := &brokerpool.View{}, &brokerpool.View{}
	for _, its := range []*brokerpool.View{own, admin} {
		run := &transportRun{port: own, admin: its, source: brokersource.Source{Secrets: []string{"rabbitmq"}}}
		run.warnOfAdmin()
		if warned := strings.Contains(strings.Join(run.warnings, ""), `Secret "rabbitmq"`); warned != (its == own) {
			t.Errorf("the warnings are %q", run.warnings)
		}
	}
}
