package handler

import (
	"redrive.dev/redrive/internal/message"
	"redrive.dev/redrive/internal/retry"
	"redrive.dev/redrive/internal/subprocess"
)

// The first and the last of the exit codes that BSD's sysexits.h gives a meaning.
const (
	firstSysexit = 64
	lastSysexit  = 78
)

// releaseExit is the exit code, beyond those of sysexits.h, with which a command gives its message back.
const releaseExit = 80

// sysexits are the names of these exit codes, and what they ask for. Whether the others are worth a retry is for the policy.
var sysexits = [...]struct { //nolint:gochecknoglobals // a constant, if Go had lists of those
	name   string
	advice retry.Advice
}{
	64 - firstSysexit: {"EX_USAGE", retry.AdviseFail},
	65 - firstSysexit: {"EX_DATAERR", retry.AdviseFail},
	66 - firstSysexit: {"EX_NOINPUT", retry.AdviseFail},
	67 - firstSysexit: {"EX_NOUSER", retry.AdviseFail},
	68 - firstSysexit: {"EX_NOHOST", retry.AdviseFail},
	69 - firstSysexit: {"EX_UNAVAILABLE", ""},
	70 - firstSysexit: {"EX_SOFTWARE", ""},
	71 - firstSysexit: {"EX_OSERR", ""},
	72 - firstSysexit: {"EX_OSFILE", ""},
	73 - firstSysexit: {"EX_CANTCREAT", ""},
	74 - firstSysexit: {"EX_IOERR", ""},
	75 - firstSysexit: {"EX_TEMPFAIL", retry.AdviseRetry},
	76 - firstSysexit: {"EX_PROTOCOL", retry.AdviseFail},
	77 - firstSysexit: {"EX_NOPERM", retry.AdviseFail},
	78 - firstSysexit: {"EX_CONFIG", retry.AdviseFail},
}

// exited completes a failure, if there is one, with what an exit code other than 0 says. What the command itself says in a result
// stands.
func exited(failure *retry.Failure, exit subprocess.Exit) *retry.Failure {
	if failure == nil {
		failure = &retry.Failure{Source: retry.SourceHandler}
	}
	class, advice := ClassExitStatus, retry.Advice("")
	if exit.Code == releaseExit {
		class, advice = "EX_RELEASE", retry.AdviseRelease
	}
	if exit.Code >= firstSysexit && exit.Code <= lastSysexit {
		class, advice = sysexits[exit.Code-firstSysexit].name, sysexits[exit.Code-firstSysexit].advice
	}
	if failure.Class == "" {
		failure.Class = class
	}
	if failure.Status == 0 {
		failure.Status = exit.Code
	}
	if failure.Advice == "" {
		failure.Advice = advice
	}
	return failure
}

// killed is the failure of a command that a signal ended, which the worker did not send.
func killed(exit subprocess.Exit, lastWords string) *retry.Failure {
	text := exit.String()
	if lastWords != "" {
		text += ": " + lastWords
	}
	return &retry.Failure{
		Source: retry.SourceCrash, Class: exit.SignalName(), Status: 128 + int(exit.Signal),
		Message: message.Text(text, message.MaxText), Logged: exit.String(),
	}
}
