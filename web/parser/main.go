// The shell parser mvdan/sh as WebAssembly, for the translator in a web page (docs/web.md).
//
// It defines globalThis.trinityCompatParse(source: Uint8Array): string. The answer is JSON: {"tree": …}, in the form
// that `shfmt --to-json -ln bash` of version 3.14 prints, or {"error": "LINE:COLUMN: MESSAGE"}, as that shfmt says it.
// scripts/site/build_web_parser.sh builds it from Debian's source of mvdan/sh 3.6; later.go has what 3.14 does otherwise.
package main

import (
	"runtime/debug"
	"syscall/js"
)

const maxStack = 64 << 20 // bytes: a deeper nesting ends this instance, and parser.js starts another

func main() {
	debug.SetMaxStack(maxStack)
	js.Global().Set("trinityCompatParse", js.FuncOf(func(this js.Value, arguments []js.Value) any {
		source := make([]byte, arguments[0].Get("length").Int())
		js.CopyBytesToGo(source, arguments[0])
		return answer(source)
	}))
	select {}
}
