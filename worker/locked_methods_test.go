package worker

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
)

// If a function calls a method whose name ends in Locked, the function locks a mutex, or its own name ends in
// Locked.
func TestLockedMethodsAreCalledWithLock(t *testing.T) {
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	calls := 0
	for _, entry := range entries {
		if !strings.HasSuffix(entry.Name(), ".go") || strings.HasSuffix(entry.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), entry.Name(), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || strings.HasSuffix(f.Name.Name, "Locked") {
				continue
			}
			locks, calledLocked := false, ""
			ast.Inspect(f, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					if method, ok := call.Fun.(*ast.SelectorExpr); ok {
						locks = locks || method.Sel.Name == "Lock"
						if strings.HasSuffix(method.Sel.Name, "Locked") {
							calls++
							calledLocked = method.Sel.Name
						}
					}
				}
				return true
			})
			if calledLocked != "" && !locks {
				t.Errorf("%s: %s calls %s and does not lock the pool's mu", entry.Name(), f.Name.Name, calledLocked)
			}
		}
	}
	if calls < 50 {
		t.Errorf("only %d calls were found", calls)
	}
}
