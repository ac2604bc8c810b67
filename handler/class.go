package handler

import (
	"os"
	"reflect"
	"slices"
	"syscall"
)

// typeOf names the type of the innermost error that has one which tells something; "" where none has. Of joined errors, the
// first counts that does.
func typeOf(err error) string {
	for _, inner := range unwrap(err) {
		if name := typeOf(inner); name != "" {
			return name
		}
	}
	kind := reflect.TypeOf(err)
	if kind.Kind() == reflect.Pointer {
		kind = kind.Elem()
	}
	if isSilent(kind) {
		return ""
	}
	return kind.String()
}

// isSilent is true for types that say nothing about what went wrong: those of errors that are made of texts and other errors, and
// those of all errors of the system, whichever it is.
func isSilent(kind reflect.Type) bool {
	switch kind.PkgPath() {
	case "errors", "fmt", "github.com/pkg/errors", "golang.org/x/xerrors":
		return true
	}
	switch kind {
	case reflect.TypeFor[syscall.Errno](), reflect.TypeFor[os.SyscallError](), reflect.TypeFor[advised](), reflect.TypeFor[carrying]():
		return true
	}
	return kind.Name() == ""
}

// unwrap gives the errors right below one.
func unwrap(err error) []error {
	var below []error
	switch err := err.(type) { //nolint:errorlint // each error of the chain has its turn
	case interface{ Unwrap() error }:
		below = []error{err.Unwrap()}
	case interface{ Unwrap() []error }:
		below = err.Unwrap()
	}
	return slices.DeleteFunc(slices.Clone(below), func(err error) bool { return err == nil })
}
