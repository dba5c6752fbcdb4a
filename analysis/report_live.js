// In a page of dse report --serve: shows the run's status, and loads the page anew when the run has more rows.
'use strict';
(() => {
const line = document.getElementById('live'), shown = JSON.parse(document.getElementById('data-facts').textContent).generation;
async function follow() {
  const now = await (await fetch('status.json')).json();
  line.textContent = now.line;
  if (now.generation !== shown) location.reload();
  else if (now.running) setTimeout(next, 2000);
}
const next = () => follow().catch(() => { line.textContent = 'dse report --serve has ended'; });
next();
})();
