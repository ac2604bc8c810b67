// Package testhealth tells tests what Flux and Argo CD make of an object: Flux by the kstatus library, Argo CD by the Lua
// script that Redrive ships, run as Argo CD runs it.
package testhealth

import (
	"context"
	"io/fs"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"redrive.dev/redrive/config/argocd"
	"redrive.dev/redrive/config/health"
)

// scriptTimeout is Argo CD's own.
const scriptTimeout = time.Second

// Fixture is an object in one state.
type Fixture struct {
	// Name of its file.
	Name string
	// Want is what kstatus must make of it.
	Want   status.Status
	Object *unstructured.Unstructured
}

// Fixtures returns all objects of config/health.
func Fixtures(t testing.TB) []Fixture {
	t.Helper()
	files, err := fs.Glob(health.FS, "testdata/*/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d fixtures: %v", len(files), err)
	}
	found := make([]Fixture, 0, len(files))
	for _, file := range files {
		found = append(found, Fixture{
			Name: strings.TrimPrefix(file, "testdata/"), Want: status.FromStringOrDie(path.Base(path.Dir(file))),
			Object: Decode(t, Read(t, file)),
		})
	}
	return found
}

// Read returns a file of config/health.
func Read(t testing.TB, file string) []byte {
	t.Helper()
	data, err := health.FS.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Decode reads an object from YAML.
func Decode(t testing.TB, data []byte) *unstructured.Unstructured {
	t.Helper()
	text, err := yaml.YAMLToJSON(data)
	if err != nil {
		t.Fatal(err)
	}
	object := &unstructured.Unstructured{}
	if err := object.UnmarshalJSON(text); err != nil {
		t.Fatal(err)
	}
	return object
}

// Flux returns what kstatus computes, and its message.
func Flux(t testing.TB, object *unstructured.Unstructured) (result status.Status, message string) {
	t.Helper()
	computed, err := status.Compute(object)
	if err != nil {
		t.Fatal(err)
	}
	return computed.Status, computed.Message
}

// Argo returns the health that the script computes, and its message.
func Argo(t testing.TB, object *unstructured.Unstructured) (result, message string) {
	t.Helper()
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	// Argo CD opens these, and a part of "os" that the script has no need of.
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName: lua.OpenPackage, lua.BaseLibName: lua.OpenBase, lua.TabLibName: lua.OpenTable,
	} {
		err := state.CallByParam(lua.P{Fn: state.NewFunction(open), Protect: true}, lua.LString(name))
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), scriptTimeout)
	defer cancel()
	state.SetContext(ctx)
	state.SetGlobal("obj", luaValue(state, object.Object))
	if err := state.DoString(argocd.HealthScript); err != nil {
		t.Fatalf("health.lua: %v", err)
	}
	table, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		t.Fatalf("health.lua returns a %s, and Argo CD takes a table", state.Get(-1).Type())
	}
	return table.RawGetString("status").String(), table.RawGetString("message").String()
}

// Agrees is the health of Argo CD that goes with a result of kstatus.
func Agrees(result status.Status) string {
	switch result {
	case status.CurrentStatus:
		return "Healthy"
	case status.FailedStatus:
		return "Degraded"
	case status.InProgressStatus, status.TerminatingStatus:
		return "Progressing"
	default:
		return "Unknown"
	}
}

// luaValue turns JSON into what Argo CD turns it into.
func luaValue(state *lua.LState, value any) lua.LValue {
	switch v := value.(type) {
	case bool:
		return lua.LBool(v)
	case string:
		return lua.LString(v)
	case int64:
		return lua.LNumber(v)
	case float64:
		return lua.LNumber(v)
	case []any:
		table := state.CreateTable(len(v), 0)
		for _, item := range v {
			table.Append(luaValue(state, item))
		}
		return table
	case map[string]any:
		table := state.CreateTable(0, len(v))
		for key, item := range v {
			table.RawSetString(key, luaValue(state, item))
		}
		return table
	default:
		return lua.LNil
	}
}
