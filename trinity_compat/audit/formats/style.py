"""The style sheet of the HTML audit."""

CSS = """
:root{color-scheme:light dark;--line:#8884}
:root{--same:#2e9e5b;--near:#d9a514;--ours:#8e5bd1;--open:#d8572a;--no:#b3202c}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,sans-serif;margin:0}
main{max-width:76rem;margin:0 auto;padding:2rem 1.25rem 4rem}
h1{font-size:1.9rem;margin:0}
h2{font-size:1.15rem;margin:2.4rem 0 .6rem}
.lead{font-size:1.1rem;margin:.4rem 0 1.2rem}
.bar{display:flex;height:1.1rem;gap:2px;border-radius:.3rem;overflow:hidden}
.outcomes{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:1rem;margin:1rem 0}
dd{margin:.15rem 0 0;opacity:.75}
i{display:inline-block;width:.7rem;height:.7rem;border-radius:50%;margin-right:.45rem}
.o-same{background:var(--same)}
.o-approximated{background:var(--near)}
.o-ours-only{background:var(--ours)}
.o-open{background:var(--open)}
.o-refused{background:var(--no)}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th{text-align:left;font-weight:600;opacity:.65}
td,th{padding:.35rem .8rem .35rem 0;vertical-align:top;border-bottom:1px solid var(--line)}
code{font:.86em ui-monospace,monospace;overflow-wrap:anywhere}
small{opacity:.65}
summary{cursor:pointer}
.launch{border-bottom:1px solid var(--line);padding:.45rem 0}
.refused{color:var(--no);font-weight:600}
td:has(>.status){min-width:9.5rem}
td:has(>code){min-width:12rem}
td:last-child{overflow-wrap:anywhere;min-width:9rem}
.s-approximated{color:var(--near)}
.s-unsupported_upstream{color:var(--ours)}
.s-unsupported,.s-fork_key{color:var(--open)}
.s-unknown{color:var(--no)}
footer{margin-top:3rem;opacity:.5}
@media print{details{display:block}details>*{display:block}}
"""
