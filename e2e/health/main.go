// Reports the health of an object as Flux and Argo CD rate it:
//
//	health health.lua < object.json
//	{"kstatus":{"status":"Current","message":"..."},"argocd":{"status":"Healthy","message":"..."}}
//
// Flux uses its own copy of kstatus, and this program calls kstatus itself. Argo CD runs the Lua script of a resource
// with the object in the global variable obj, without access to files and processes. This program does the same, with
// the same library.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/fluxcd/cli-utils/pkg/kstatus/status"
	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: health health.lua < object.json")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(script string) error {
	// Argo CD reads every number as a float.
	var object map[string]any
	if err := json.NewDecoder(os.Stdin).Decode(&object); err != nil {
		return fmt.Errorf("read the object: %w", err)
	}
	argocd, err := runLua(script, object)
	if err != nil {
		return fmt.Errorf("%s: %w", script, err)
	}
	text, err := json.Marshal(object)
	if err != nil {
		return err
	}
	// Clients of Kubernetes read whole numbers as integers.
	var typed unstructured.Unstructured
	if err := typed.UnmarshalJSON(text); err != nil {
		return err
	}
	result, err := status.Compute(&typed)
	if err != nil {
		return fmt.Errorf("kstatus: %w", err)
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]verdict{
		"kstatus": {result.Status.String(), result.Message},
		"argocd":  argocd,
	})
}

func runLua(script string, object map[string]any) (verdict, error) {
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for name, open := range map[string]lua.LGFunction{
		lua.LoadLibName:   lua.OpenPackage,
		lua.BaseLibName:   lua.OpenBase,
		lua.TabLibName:    lua.OpenTable,
		lua.StringLibName: lua.OpenString,
	} {
		call := lua.P{Fn: state.NewFunction(open), NRet: 0, Protect: true}
		if err := state.CallByParam(call, lua.LString(name)); err != nil {
			return verdict{}, err
		}
	}
	state.SetGlobal("obj", value(state, object))
	if err := state.DoFile(script); err != nil {
		return verdict{}, err
	}
	answer, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return verdict{}, fmt.Errorf("returns %s, not a table", state.Get(-1).Type())
	}
	return verdict{lua.LVAsString(answer.RawGetString("status")), lua.LVAsString(answer.RawGetString("message"))}, nil
}

func value(state *lua.LState, plain any) lua.LValue {
	switch plain := plain.(type) {
	case bool:
		return lua.LBool(plain)
	case float64:
		return lua.LNumber(plain)
	case string:
		return lua.LString(plain)
	case []any:
		list := state.NewTable()
		for _, item := range plain {
			list.Append(value(state, item))
		}
		return list
	case map[string]any:
		table := state.NewTable()
		for name, field := range plain {
			table.RawSetString(name, value(state, field))
		}
		return table
	default:
		return lua.LNil
	}
}
