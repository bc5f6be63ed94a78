/* The attack program: tries one thing after the other that must not work in a view or in an environment, and tells what
 * came of each, one line a fact. agenthost/attack/catalogue.py says what must come.
 *
 *     oac-attack ACTION [ARGUMENT...] [++ ACTION [ARGUMENT...]]...
 *
 * The actions run one after the other; `exec` and those that never return come last. Arguments "-c X" in front, as Codex
 * gets them, are passed over. */
#include "attack.h"

int main(int argc, char **argv)
{
    return run_actions(argc, argv, act);
}
