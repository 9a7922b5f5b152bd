"use strict";
// Editors of CodeMirror, each in a shadow root: there its style sheets are adopted ones, which the content
// security policy allows; in the document they would be inline.
const Editors = (() => {
  const C = CodeMirror;
  const theme = C.EditorView.theme({
    "&": { color: "var(--ink)", backgroundColor: "var(--card)", fontSize: "12.5px", height: "100%" },
    "&.cm-focused": { outline: "2px solid var(--focus)" },
    ".cm-scroller": { fontFamily: 'ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace', lineHeight: "1.55" },
    ".cm-gutters": { backgroundColor: "var(--card)", color: "var(--dim)", borderRight: "1px solid var(--line)" },
    ".cm-activeLine, .cm-activeLineGutter": { backgroundColor: "color-mix(in srgb, var(--a) 5%, transparent)" },
    ".cm-linked": { backgroundColor: "color-mix(in srgb, var(--a) 7%, transparent)", boxShadow: "inset 3px 0 var(--a)" },
    ".cm-cursor": { borderLeftColor: "var(--ink)" },
    ".cm-placeholder": { color: "var(--dim)" },
    "&.cm-focused > .cm-scroller > .cm-selectionLayer .cm-selectionBackground, .cm-selectionBackground": { backgroundColor: "color-mix(in srgb, var(--a) 25%, transparent) !important" },
    ".cm-tooltip, .cm-panels": { backgroundColor: "var(--card)", color: "var(--ink)", border: "1px solid var(--line)" },
    ".cm-tooltip": { maxWidth: "min(34rem, 90vw)", overflowWrap: "anywhere" },
    ".cm-tooltip-autocomplete ul li[aria-selected]": { backgroundColor: "var(--accent)", color: "#fff" },
    ".cm-diagnosticAction": { backgroundColor: "var(--accent)", color: "#fff" },
    ".cm-changedLine, &.cm-merge-b .cm-changedLine": { backgroundColor: "var(--good-bg)" },
    // The package's own sign is in few fonts.
    ".cm-collapsedLines:before, .cm-collapsedLines:after": { content: '"…"' },
    ".cm-deletedChunk": { backgroundColor: "var(--bad-bg)" },
  });
  const T = C.tags;
  const colours = C.syntaxHighlighting(C.HighlightStyle.define([
    { tag: [T.comment], color: "var(--dim)" },
    { tag: [T.string, T.special(T.string)], color: "var(--good)" },
    { tag: [T.propertyName, T.definition(T.propertyName), T.definition(T.variableName), T.attributeName], color: "var(--a)" },
    { tag: [T.keyword, T.standard(T.variableName)], color: "var(--ink)", fontWeight: "600" },
  ]));

  // Lines of a view that its other side points at.
  const light = C.StateEffect.define();
  const lit = C.StateField.define({
    create: () => C.Decoration.none,
    update(found, change) {
      found = found.map(change.changes);
      for (const effect of change.effects) if (effect.is(light)) {
        const doc = change.state.doc, lines = [...new Set(effect.value)].filter(n => n >= 1 && n <= doc.lines).sort((a, b) => a - b);
        found = C.Decoration.set(lines.map(n => C.Decoration.line({ class: "cm-linked" }).range(doc.line(n).from)));
      }
      return found;
    },
    provide: field => C.EditorView.decorations.from(field),
  });

  /** Make an editor in the element `host`, whose `data-label` names it. */
  const make = (host, extensions, { coloured = true } = {}) => {
    const root = host.attachShadow({ mode: "open" });
    return new C.EditorView({
      parent: root, root,
      state: C.EditorState.create({ extensions: [
        C.lineNumbers(), C.highlightActiveLine(), C.highlightActiveLineGutter(), C.bracketMatching(), C.search(), C.highlightSelectionMatches(),
        C.keymap.of([...C.completionKeymap, ...C.lintKeymap, ...C.searchKeymap, ...C.historyKeymap, ...C.defaultKeymap]),
        lit, theme, coloured ? colours : [],
        C.EditorView.contentAttributes.of({ "aria-label": host.dataset.label, tabindex: "0" }),
        ...extensions,
      ] }),
    });
  };

  /** Light lines up, and bring the first into the view's own window if none is there. */
  const show = (view, lines, { scroll = true } = {}) => {
    view.dispatch({ effects: light.of(lines) });
    const known = lines.filter(n => n >= 1 && n <= view.state.doc.lines);
    if (!scroll || !known.length) return;
    const approach = tries => {
      const box = view.scrollDOM, blocks = known.map(n => view.lineBlockAt(view.state.doc.line(n).from));
      if (blocks.some(block => block.top >= box.scrollTop && block.bottom <= box.scrollTop + box.clientHeight)) return;
      box.scrollTop = blocks[0].top - box.clientHeight / 3;
      // Heights of lines that were never shown are estimates.
      if (tries) requestAnimationFrame(() => requestAnimationFrame(() => approach(tries - 1)));
    };
    approach(4);
  };

  const replace = (view, text) => {
    if (view.state.doc.toString() !== text) view.dispatch({ changes: { from: 0, to: view.state.doc.length, insert: text } });
  };

  return { make, show, replace, language: name => (/\.ya?ml$/.test(name) ? C.yaml() : C.StreamLanguage.define(C.shell)) };
})();
