/* The state of the page, kept in the address behind `#`, so that a link restores the view. */

/** Read the state from a fragment such as "#view=attention&head=3". */
export function readFragment(fragment) {
  const found = {};
  for (const [name, value] of new URLSearchParams(fragment.replace(/^#/, ""))) found[name] = value;
  return found;
}

/** Write a state as a fragment; empty values are left out. */
export function writeFragment(state) {
  const kept = Object.entries(state).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return "#" + new URLSearchParams(kept.map(([name, value]) => [name, String(value)])).toString();
}

/** Create the state. `changed` is called when the address changes from outside: a pasted link, the back button. */
export function createState(changed) {
  let values = readFragment(location.hash);
  window.addEventListener("hashchange", () => {
    if (location.hash === "#main") return;
    values = readFragment(location.hash);
    changed();
  });
  return {
    get: (name, usual = "") => values[name] ?? usual,
    /** Return a whole number from 0 to `count` - 1, whatever the address says. */
    index(name, count, usual = 0) {
      const value = Number.parseInt(values[name] ?? "", 10);
      return Math.min(Math.max(count - 1, 0), Math.max(0, Number.isNaN(value) ? usual : value));
    },
    /** Return the value if it is one of the choices, otherwise the first choice. */
    choice: (name, choices, usual = choices[0]) => (choices.includes(values[name]) ? values[name] : usual),
    set(changes) {
      values = { ...values, ...changes };
      try {
        history.replaceState(null, "", writeFragment(values));
      } catch {
        /* a page inside a frame without an address of its own keeps its state in memory */
      }
    },
    all: () => ({ ...values }),
  };
}
