/** The walkthrough's sample: a place for an easy suggestion, and a body to fill. A test fills both with the embedded model. */

export const SAMPLE = `class Rectangle:
    def __init__(self, width, height):
        self.width = width
        self.height = height

    def area(self):
        return self.width * self.height

    def perimeter(self):
        return 2 * (self.width + self.height)


class Window:
    def __init__(self, width, height):
        self.width = width
        

    def area(self):
        ...

    def perimeter(self):
        return 2 * (self.width + self.height)


window = Window(3, 4)
print(window.area(), window.perimeter())
`;

/** The text to type in the walkthrough, and the line with the accepted suggestion. */
export const TYPED = "self.";
export const COMPLETED = "self.height = height";
/** The body after the fill. */
export const FILLED = "return self.width * self.height";

/** The text before the place to type, and the text before the body to fill. */
export const BEFORE_TYPED = "class Window:\n    def __init__(self, width, height):\n        self.width = width\n        ";
export const BEFORE_BODY = "    def area(self):\n        ";
