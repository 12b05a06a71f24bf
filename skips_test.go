package queuectl

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strconv"
	"strings"
	"testing"
)

// Tests are skipped only by functions of the package internal/skip. Each call passes a constant reason, which
// says why the test is skipped and, after a semicolon, which other test or run checks the same promise.
func TestSkippedTestsGiveConstantReasons(t *testing.T) {
	t.Parallel()
	reasons := 0
	for file := range importsByGoFile(t) {
		if strings.HasPrefix(file, "internal/skip/") {
			continue
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		set := token.NewFileSet()
		syntax, err := parser.ParseFile(set, file, raw, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		inTest := strings.HasSuffix(file, "_test.go") || strings.Contains(string(raw), "\t\"testing\"\n")
		ast.Inspect(syntax, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			selector, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			line := set.Position(call.Pos())
			if pkg, ok := selector.X.(*ast.Ident); ok && pkg.Name == "skip" {
				reasons++
				reason, isConstant := constantString(call.Args[len(call.Args)-1])
				why, instead, _ := strings.Cut(reason, "; ")
				if !isConstant || why == "" || instead == "" {
					t.Errorf("%s: the reason %q does not have the form \"why; what covers the promise instead\"", line, reason)
				}
				return true
			}
			switch selector.Sel.Name {
			case "Skip", "Skipf", "SkipNow":
				if inTest {
					t.Errorf("%s: the test calls %s; use the package internal/skip instead", line, selector.Sel.Name)
				}
			}
			return true
		})
	}
	if reasons == 0 {
		t.Error("no call of the package internal/skip was found")
	}
}

// constantString returns the value of a string literal or a sum of string literals.
func constantString(e ast.Expr) (value string, ok bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		value, err := strconv.Unquote(e.Value)
		return value, err == nil
	case *ast.BinaryExpr:
		left, ok := constantString(e.X)
		right, ok2 := constantString(e.Y)
		return left + right, ok && ok2
	}
	return "", false
}
