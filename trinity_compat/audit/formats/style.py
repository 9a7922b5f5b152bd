"""What only the HTML audit has of style; the rest is ``trinity_compat.web``'s."""

CSS = """
:root{--same:light-dark(#2e9e5b,#34d399);--near:light-dark(#d9a514,#facc15);--ours:light-dark(#8e5bd1,#c084fc);
--open:light-dark(#d8572a,#fb923c);--no:light-dark(#b3202c,#f87171)}
main{max-width:76rem}
h2{font-size:1.1rem;margin:2rem 0 .6rem}
.lead{font-size:1.1rem;margin:.4rem 0 1.2rem}
.bar{display:flex;height:1.1rem;gap:2px;border-radius:.3rem;overflow:hidden}
.outcomes{display:grid;grid-template-columns:repeat(auto-fit,minmax(15rem,1fr));gap:1rem;margin:1rem 0}
dd{margin:.15rem 0 0;color:var(--dim)}
i{display:inline-block;width:.7rem;height:.7rem;border-radius:50%;margin-right:.45rem}
.o-same{background:var(--same)}
.o-approximated{background:var(--near)}
.o-ours-only{background:var(--ours)}
.o-open{background:var(--open)}
.o-refused{background:var(--no)}
td,th{vertical-align:top}
.launch{border-bottom:1px solid var(--line);padding:.45rem 0}
.refused{color:var(--bad);font-weight:600}
td:has(>.status){min-width:9.5rem}
td:has(>code){min-width:12rem}
td:last-child{overflow-wrap:anywhere;min-width:15rem}
td:nth-child(4):not(:last-child){overflow-wrap:anywhere;min-width:7rem}
code,small{overflow-wrap:anywhere}
footer{margin:3rem 0 0;padding:0}
@media print{details{display:block}details>*{display:block}}
"""
