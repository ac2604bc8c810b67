package cli

import (
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"redrive.dev/redrive/api/v1alpha1"
	"redrive.dev/redrive/internal/cli/terminal"
	"redrive.dev/redrive/internal/status"
)

// untold stands for what the broker never tells, as opposed to what it has not told yet.
const untold = "-"

// statusText shows reports to people.
func statusText(reports []status.Report, now time.Time) string {
	var text strings.Builder
	for i := range reports {
		if i > 0 {
			text.WriteString("\n")
		}
		showReport(&text, &reports[i], now)
	}
	return text.String()
}

func showReport(text *strings.Builder, r *status.Report, now time.Time) {
	line := plainLines(text)
	line("Transport %s/%s: %s", r.Namespace, r.Name, strings.Join(facts(r), ", "))
	if !r.Ready && !hasCause(r) {
		line("  %s", r.Message)
	}
	for _, condition := range r.Conditions {
		line("  %s, %s, since %s: %s", condition.Type, condition.Reason, duration.HumanDuration(now.Sub(condition.Since.Time)), condition.Message)
		if condition.WhatToDo != "" {
			line("    What to do: %s", condition.WhatToDo)
		}
	}
	if r.NotRead != "" {
		line("  The broker was not read: %s", r.NotRead)
	}
	if len(r.Adopted) > 0 {
		line("  Adopted, and never deleted: %s", strings.Join(r.Adopted, ", "))
	}
	if len(r.Retiring) > 0 {
		line("  On their way out: %s", strings.Join(r.Retiring, ", "))
	}
	for _, row := range slices.Concat(terminal.Align(queueRows(r.Queues), 1, 6), terminal.Align(pipelineRows(r.Pipelines), 1, 1)) {
		line("  %s", row)
	}
}

// facts are what the first line says.
func facts(r *status.Report) []string {
	var found []string
	if r.Ready {
		found = append(found, "Ready")
	} else {
		found = append(found, "not Ready ("+r.Reason+")")
	}
	if r.Deleting {
		found = append(found, "being deleted")
	}
	if r.Workers != "" {
		found = append(found, "workers "+r.Workers)
	}
	if r.Failed != nil {
		text := "failed " + number(*r.Failed)
		if r.NotRead != "" {
			text += " or so"
		}
		found = append(found, text)
	}
	if r.Broker != nil {
		found = append(found, "on "+r.Broker.Cluster, "vhost "+r.Broker.VHost)
	}
	return found
}

// hasCause is true where a condition tells what the first line leaves out.
func hasCause(r *status.Report) bool {
	for _, condition := range r.Conditions {
		if condition.Reason == r.Reason {
			return true
		}
	}
	return false
}

func queueRows(queues []status.Queue) [][]string {
	if len(queues) == 0 {
		return nil
	}
	rows := [][]string{{headQueue, "ROLE", "WAITING", "UNACKED", "OLDEST", "CONSUMERS", "NOTES"}}
	for _, q := range queues {
		rows = append(rows, []string{
			q.Name, string(q.Role), count(q.Waiting), count(q.InHand), oldest(q), count(q.Consumers), strings.Join(q.Notes, "; "),
		})
	}
	return rows
}

// pipelineRows are the stages that messages go through, in each worker group.
func pipelineRows(pipelines []v1alpha1.WorkerPipeline) [][]string {
	if len(pipelines) == 0 {
		return nil
	}
	const arrow = " > "
	rows := [][]string{{"WORKER", "STAGES"}}
	for _, p := range pipelines {
		if len(p.Stages) > 0 {
			rows = append(rows, []string{p.Worker, strings.Join(p.Stages, arrow)})
		}
		if len(p.StrictStages) > 0 {
			rows = append(rows, []string{p.Worker + " (strict order)", strings.Join(p.StrictStages, arrow)})
		}
	}
	return rows
}

// oldest is empty where nothing waits.
func oldest(q status.Queue) string {
	if q.Oldest == "" && q.Waiting != nil && *q.Waiting > 0 {
		return untold
	}
	return q.Oldest
}
