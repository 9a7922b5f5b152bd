// The shell parser mvdan/sh as WebAssembly, for the translator in a web page.
//
// It defines globalThis.trinityCompatParse(source: Uint8Array): string. The answer is JSON: {"tree": …}, in the form
// that `shfmt --to-json -ln bash` of version 3.14 prints, or {"error": "LINE:COLUMN: MESSAGE"}, as shfmt says it.
// scripts/build_web_parser.sh builds it from the source package of Debian.
package main

import (
	"bytes"
	"runtime/debug"
	"syscall/js"

	"mvdan.cc/sh/v3/syntax"
)

const maxStack = 64 << 20 // bytes: a deeper nesting ends this instance, and parser.js starts another

func main() {
	debug.SetMaxStack(maxStack)
	js.Global().Set("trinityCompatParse", js.FuncOf(func(this js.Value, arguments []js.Value) any {
		source := make([]byte, arguments[0].Get("length").Int())
		js.CopyBytesToGo(source, arguments[0])
		return parse(source)
	}))
	select {}
}

func parse(source []byte) string {
	parser := syntax.NewParser(syntax.KeepComments(true), syntax.Variant(syntax.LangBash))
	file, err := parser.Parse(bytes.NewReader(source), "")
	if err != nil {
		return failure(err.Error())
	}
	return tree(file, source)
}
