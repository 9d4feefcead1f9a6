"""The client of the resident engine: finds it, starts it, and sends it requests.

In: requests of `core.values`. Out: candidates, and the state that a front end shows. Knows neither holes nor editors.
"""
