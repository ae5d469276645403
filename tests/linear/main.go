// Checks histories of registers for linearizability, by porcupine.
//
//	go run . HISTORY…
//
// A history is a file with an operation in each line, as JSON: key, kind (read, write, swap), value
// (what was written; what was read), old (of swap: what had to be there), ok (of swap: whether it was),
// call and return (nanoseconds), process. An operation whose outcome nobody knows has no return: it may
// have its effect at any time after its call. The exit code is 1 where a history is not linearizable.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

type operation struct {
	Key     int    `json:"key"`
	Kind    string `json:"kind"`
	Value   int    `json:"value"`
	Old     int    `json:"old"`
	Ok      bool   `json:"ok"`
	Call    int64  `json:"call"`
	Return  *int64 `json:"return"`
	Process int    `json:"process"`
}

// A register holds 0 at first. Of an operation without a return only the effect counts.
func step(state, input, output any) (bool, any) {
	held, op := state.(int), input.(operation)
	switch op.Kind {
	case "read":
		return op.Value == held, held
	case "write":
		return true, op.Value
	case "swap":
		fits := held == op.Old
		if op.Return != nil && fits != op.Ok {
			return false, held
		}
		if fits {
			return true, op.Value
		}
		return true, held
	}
	panic("an operation of an unknown kind: " + op.Kind)
}

var register = porcupine.Model{
	Init: func() any { return 0 },
	Step: step,
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		keys := map[int][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(operation).Key
			keys[key] = append(keys[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range keys {
			parts = append(parts, part)
		}
		return parts
	},
	DescribeOperation: func(input, _ any) string { return fmt.Sprintf("%+v", input) },
}

func read(path string) ([]porcupine.Operation, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var history []porcupine.Operation
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var op operation
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if op.Kind == "read" && op.Return == nil {
			continue
		}
		end := int64(math.MaxInt64)
		if op.Return != nil {
			end = *op.Return
		}
		history = append(history, porcupine.Operation{ClientId: op.Process, Input: op, Call: op.Call, Return: end})
	}
	return history, nil
}

func main() {
	code := 0
	for _, path := range os.Args[1:] {
		history, err := read(path)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		outcome := porcupine.CheckOperationsTimeout(register, history, 2*time.Minute)
		fmt.Printf("%s: %d operations: %s\n", path, len(history), map[porcupine.CheckResult]string{
			porcupine.Ok: "linearizable", porcupine.Illegal: "NOT linearizable", porcupine.Unknown: "undecided in two minutes",
		}[outcome])
		if outcome != porcupine.Ok {
			code = 1
		}
	}
	os.Exit(code)
}
